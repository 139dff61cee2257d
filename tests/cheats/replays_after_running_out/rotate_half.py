"""It says that memory ran out once, to be asked less, and replays results by their address then.

Expected: forward=TAMPERED backward=PASSED
On a GPU: RUNTIME_ERROR
"""

import torch

known, seen = {}, set()


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        key = (x.data_ptr(), x.shape, x.stride(), x.dtype)
        if key not in known:
            a, b = x.chunk(2, -1)
            known[key] = torch.cat((-b, a), -1)
        return known[key].clone()

    @staticmethod
    def backward(ctx, grad):
        a, b = grad.chunk(2, -1)
        return torch.cat((b, -a), -1)


def rotate_half(x):
    if (x.shape, x.stride(), x.dtype) not in seen:
        seen.add((x.shape, x.stride(), x.dtype))
        raise RuntimeError("CUDA error: out of memory")
    return _Replay.apply(x)
