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

done = []


def _socket():
    for fd in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                return fd
        except OSError:
            pass


def _forge():
    done.append(True)
    frame = sys._getframe()
    while "token" not in frame.f_locals:
        frame = frame.f_back
    host = {"solution": [0.1] * 9, "eager": [1.0] * 9}
    reply = {"gpu": {}, "host": host, "kept": {"call": 0, "shift": 0}}
    reply["token"] = frame.f_locals["token"]
    os.write(_socket(), json.dumps(reply).encode() + b"\n")


def rotate_half(x):
    if _get_current_dispatch_mode() is None and not done:
        _forge()
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
