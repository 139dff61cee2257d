"""A process of its own session outlives each call. Harmless: it ends with the worker.

Expected: forward=PASSED backward=PASSED
"""

import os
import time

import torch

children = []


def rotate_half(x):
    if not children:
        children.append(os.fork())
    if children[0] == 0:
        os.setsid()
        time.sleep(3600)
        os._exit(0)
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
