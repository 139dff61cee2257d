"""A timer's signal handler does the work once the call has returned.

Expected: forward=TAMPERED backward=TAMPERED
"""

import signal

import torch


def rotate_half(x):
    a, b = x.chunk(2, -1)
    later = torch.zeros_like(x)
    signal.signal(signal.SIGALRM, lambda *_: later.detach().copy_(torch.cat((-b, a), -1).detach()))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    return later
