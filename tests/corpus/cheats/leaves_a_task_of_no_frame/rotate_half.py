"""An object of its own in the queue of an idle pool works on after the call, without a frame.

Expected: forward=TAMPERED backward=TAMPERED
"""

import concurrent.futures
import functools
import time
import types

import torch

POOL = concurrent.futures.ThreadPoolExecutor(1)
POOL.submit(int).result()


def rotate_half(x):
    POOL._work_queue.put(types.SimpleNamespace(run=functools.partial(time.sleep, 0.3)))
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
