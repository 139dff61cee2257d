"""A thread writes the result once the call has returned.

Expected: forward=TAMPERED backward=TAMPERED
"""

import threading

import torch


def rotate_half(x):
    a, b = x.chunk(2, -1)
    result = torch.cat((-b, a), -1)
    later = torch.zeros_like(result)
    threading.Timer(0.2, later.detach().copy_, (result.detach(),)).start()
    return later
