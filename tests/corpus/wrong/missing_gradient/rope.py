"""The output has a grad_fn, but backward returns None for t.

Expected: forward=PASSED backward=INCORRECT_NUMERICAL
"""

import torch


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, freqs):
        angles = freqs[: len(t)]
        turned, passed = t.float().split((freqs.shape[-1], t.shape[-1] - freqs.shape[-1]), -1)
        a, b = turned.chunk(2, -1)
        turned = turned * angles.cos() + torch.cat((-b, a), -1) * angles.sin()
        return torch.cat((turned, passed), -1).to(t.dtype)

    @staticmethod
    def backward(ctx, grad):
        return None, None


def rope(t, freqs):
    return _Rope.apply(t, freqs)
