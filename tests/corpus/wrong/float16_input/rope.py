"""t goes through float16 on its way to float32, so a float32 t loses thirteen bits.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: t is rounded to float16
"""

import torch


def _turned(x, freqs, backward):
    angles = freqs[: len(x)]
    turned, passed = x.half().float().split((freqs.shape[-1], x.shape[-1] - freqs.shape[-1]), -1)
    (a, b), (sin_a, sin_b) = turned.chunk(2, -1), angles.sin().chunk(2, -1)
    if backward:
        other = torch.cat((b * sin_b, -a * sin_a), -1)
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
