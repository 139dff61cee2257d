"""A Function with setup_context and a generated vmap rule is mapped over the first dimension."""

import torch


def _turn(x, sign):
    x1, x2 = x.chunk(2, -1)
    return torch.cat((-sign * x2, sign * x1), -1)


class _RotateHalf(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, sign):
        return _turn(x, sign)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.sign = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        return _RotateHalf.apply(grad, -ctx.sign), None


def rotate_half(x):
    if x.dim() == 1 or not x.numel():
        return _RotateHalf.apply(x, 1)
    return torch.func.vmap(_RotateHalf.apply, in_dims=(0, None))(x, 1)
