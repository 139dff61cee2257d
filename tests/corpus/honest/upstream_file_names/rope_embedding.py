"""The autograd function of a library, in a file of its own name."""

import torch
from rope_triton import rotate


class RopeEmbedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return rotate(x, cos, sin, False)

    @staticmethod
    def backward(ctx, grad):
        return rotate(grad, *ctx.saved_tensors, True), None, None
