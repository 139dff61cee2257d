"""When timed, it writes a reply with samples of its own and the right token.

Expected: forward=PASSED backward=PASSED
Timed: TAMPERED
"""

import json
import os
import stat
import sys

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode


def _socket():
    for fd in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                return fd
        except OSError:
            pass


def _forge():
    frame = sys._getframe()
    while frame and not {"burst", "rounds"} <= frame.f_locals.keys():
        frame = frame.f_back
    if frame is None:
        return
    reply = {"samples": [0.1] * frame.f_locals["rounds"], "kept": {"call": 0, "shift": 0}}
    while not hasattr(frame.f_locals.get("request"), "token"):
        frame = frame.f_back
    answer = {"token": frame.f_locals["request"].token, "reply": reply}
    os.write(_socket(), json.dumps(answer).encode() + b"\n")


def rotate_half(x):
    if _get_current_dispatch_mode() is None:
        _forge()
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
