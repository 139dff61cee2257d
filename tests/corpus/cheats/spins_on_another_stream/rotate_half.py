"""When timed on a GPU, a kernel on another stream goes on and on, so that eager is slow beside it.

Expected: forward=PASSED backward=PASSED
Timed on a GPU: TAMPERED
"""

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

streams = []


def _spin():
    if not streams:
        streams.extend(torch.cuda.Stream() for _ in range(4))
        streams.append(torch.empty(1 << 28, dtype=torch.uint8, device="cuda"))
    *several, memory = streams
    for stream in several:
        with torch.cuda.stream(stream):
            for _ in range(20):
                memory.fill_(0)


def rotate_half(x):
    a, b = x.chunk(2, -1)
    result = torch.cat((-b, a), -1)
    if x.is_cuda and _get_current_dispatch_mode() is None:
        _spin()
    return result
