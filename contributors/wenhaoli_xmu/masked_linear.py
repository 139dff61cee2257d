"""A tile with one kind of token takes one product, not two.

A mixed tile takes both. Backward is one launch.
"""

import products
import torch

TUNED = (products.forward_tiles, products.backward_tiles)


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.save_for_backward(x, w_v, w_t, mask)
        return products.forward(x, w_v, w_t, mask)

    @staticmethod
    def backward(ctx, grad):
        if torch.is_grad_enabled():  # create_graph=True
            raise NotImplementedError("masked_linear has no second derivative")
        x, w_v, w_t, mask = ctx.saved_tensors
        d_x, (d_v, d_t) = products.backward(grad, x, (w_v, w_t), mask)
        return d_x, d_v, d_t, None


def masked_linear(
    x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Return x @ w_v.T for the tokens of the mask and x @ w_t.T for the others.

    x: [tokens, in]; w_v, w_t: [out, in]; mask: bool [tokens]. Returns [tokens, out] in x's dtype.
    """
    return _MaskedLinear.apply(x, w_v, w_t, mask.contiguous())
