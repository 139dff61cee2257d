"""A clone of t is rotated in place, and marked as dirty by the Function that does it."""

import torch


def _turn_(own, angles, transposed):
    """Overwrite the first d2 features of `own`"""
    half = angles.shape[-1] // 2
    x1, x2 = own[..., :half], own[..., half : 2 * half]
    cos1, cos2 = angles.cos().chunk(2, -1)
    sin1, sin2 = angles.sin().chunk(2, -1)
    if transposed:
        sin1, sin2 = -sin2, -sin1
    first, second = x1.float().clone(), x2.float().clone()
    x1.copy_(first * cos1 - second * sin1)
    x2.copy_(second * cos2 + first * sin2)
    return own


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own, angles):
        ctx.mark_dirty(own)
        ctx.save_for_backward(angles)
        return _turn_(own, angles, False)

    @staticmethod
    def backward(ctx, grad):
        return _turn_(grad.clone(), *ctx.saved_tensors, True), None


def rope(t, freqs, *, tensor_format="sbhd"):
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    angles = freqs[: t.shape[tensor_format.index("s")]]
    return _Rope.apply(t.clone(), angles.transpose(0, 1) if tensor_format == "bshd" else angles)
