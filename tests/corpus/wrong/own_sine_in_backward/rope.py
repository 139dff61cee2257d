"""Backward takes a feature's own sine, not its partner's: right only where halves are equal.

Expected: forward=PASSED backward=INCORRECT_NUMERICAL
Cause: backward takes a feature's own sine
"""

import torch


def _turned(x, freqs, backward):
    angles = freqs[: len(x)]
    turned, passed = x.float().split((freqs.shape[-1], x.shape[-1] - freqs.shape[-1]), -1)
    (a, b), (sin_a, sin_b) = turned.chunk(2, -1), angles.sin().chunk(2, -1)
    if backward:
        other = torch.cat((b * sin_a, -a * sin_b), -1)
    else:
        other = torch.cat((-b * sin_a, a * sin_b), -1)
    return torch.cat((turned * angles.cos() + other, passed), -1).to(x.dtype)


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, freqs):
        ctx.save_for_backward(freqs)
        return _turned(t, freqs, False)

    @staticmethod
    def backward(ctx, grad):
        (freqs,) = ctx.saved_tensors
        return _turned(grad, freqs, True), None


def rope(t, freqs):
    return _Rope.apply(t, freqs)
