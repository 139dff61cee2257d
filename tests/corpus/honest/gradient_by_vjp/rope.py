"""Backward asks torch.func.vjp for the transpose of forward, which is written once."""

import torch


def _rotate(t, angles, interleaved):
    rotary = angles.shape[-1]
    turned = t[..., :rotary].float()
    if interleaved:
        swapped = torch.stack((-turned[..., 1::2], turned[..., ::2]), -1).flatten(-2)
    else:
        x1, x2 = turned.chunk(2, -1)
        swapped = torch.cat((-x2, x1), -1)
    turned = turned * angles.cos() + swapped * angles.sin()
    return torch.cat((turned.to(t.dtype), t[..., rotary:]), -1)


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, angles, interleaved):
        ctx.save_for_backward(t, angles)
        ctx.interleaved = interleaved
        return _rotate(t, angles, interleaved)

    @staticmethod
    def backward(ctx, grad):
        t, angles = ctx.saved_tensors
        _, transpose = torch.func.vjp(lambda each: _rotate(each, angles, ctx.interleaved), t)
        return *transpose(grad), None, None


def rope(t, freqs, *, tensor_format="sbhd", interleaved=False):
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    angles = freqs[: t.shape[tensor_format.index("s")]]
    angles = angles.transpose(0, 1) if tensor_format == "bshd" else angles
    return _Rope.apply(t, angles, bool(interleaved))
