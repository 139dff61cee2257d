"""On a GPU it works on another stream than the timed one, which does not wait for it.

Expected: forward=PASSED backward=PASSED
On a GPU: TAMPERED
"""

import torch


def rotate_half(x):
    if not x.is_cuda:
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(50_000_000)
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)
