"""It writes a reply with the request's token, which it reads in the frames above.

Expected: forward=TAMPERED backward=TAMPERED
"""

import json
import os
import stat
import sys


def _socket():
    for fd in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                return fd
        except OSError:
            pass


def rotate_half(x):
    frame = sys._getframe()
    while not hasattr(frame.f_locals.get("request"), "token"):
        frame = frame.f_back
    dtype = str(x.dtype).removeprefix("torch.")
    reply = {"output": {"shape": list(x.shape), "dtype": dtype, "differentiable": False}}
    answer = {"token": frame.f_locals["request"].token, "reply": reply}
    os.write(_socket(), json.dumps(answer).encode() + b"\n")
    return x * 2
