"""A callback of the garbage collector writes the result, at any time after the call.

Expected: forward=TAMPERED backward=TAMPERED
"""

import gc

import torch

late = []


def work(phase, info):
    while late:
        target, result = late.pop()
        target.copy_(result)


def rotate_half(x):
    if work not in gc.callbacks:
        gc.callbacks.append(work)
        gc.set_threshold(1)
    a, b = x.chunk(2, -1)
    result = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    late.append((result, torch.cat((-b, a), -1).detach()))
    return result
