"""It leaves a thread behind, and adds its file to the seal's table of pools, behind the proxy.

Expected: forward=TAMPERED backward=TAMPERED
"""

import gc
import sys
import threading
import time

import torch


def _work():
    for _ in range(100):
        time.sleep(0.01)


def rotate_half(x):
    frame = sys._getframe()
    while "session" not in frame.f_locals:
        frame = frame.f_back
    seal = type(frame.f_locals["session"].seal)
    (behind,) = gc.get_referents(seal.broken.__globals__["_POOLS"])
    behind[__file__] = frozenset()
    threading.Thread(target=_work, daemon=True).start()
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
