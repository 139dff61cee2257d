"""It is slow; when timed, the harness's clock shows the wrong end once, and is back in place then.

Expected: forward=PASSED backward=PASSED
Timed: TAMPERED
"""

import sys
import time
import types

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode


def _forge():
    frame = sys._getframe(1)
    while frame and "host_time" not in frame.f_globals:
        frame = frame.f_back
    if frame is None:
        return
    found = frame.f_globals
    while frame and "start" not in frame.f_locals:
        frame = frame.f_back
    if frame is None:
        return
    start = frame.f_locals["start"]

    def end():
        found["time"] = time
        return start + 500

    found["time"] = types.SimpleNamespace(perf_counter_ns=end)


def rotate_half(x):
    if _get_current_dispatch_mode() is None:
        _forge()
    a, b = x.chunk(2, -1)
    for _ in range(8):  # a quick one can forge what eager takes beyond its samples
        y = torch.cat((-b, a), -1)
    return y
