"""A tile of one kind of token takes one product, a mixed one both; backward is one launch."""

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
        x, w_v, w_t, mask = ctx.saved_tensors
        d_x, (d_v, d_t) = products.backward(grad, x, (w_v, w_t), mask)
        return d_x, d_v, d_t, None


def masked_linear(
    x: torch.Tensor, w_v: torch.Tensor, w_t: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """mask ? x @ w_v.T : x @ w_t.T for each token.

    x: [tokens, in]; w_v, w_t: [out, in]; mask: bool [tokens]. Returns [tokens, out] in x's dtype.
    """
    return _MaskedLinear.apply(x, w_v, w_t, mask.contiguous())
