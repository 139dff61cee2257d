"""Tokens go through in blocks, whose results fill a buffer; only x is kept for backward."""

import torch
from torch.nn.functional import linear, silu

BLOCK = 4096


def _layer(x, up, down, gate):
    return linear(silu(linear(x, up)) * linear(x, gate), down)


def _block(x, mask, weights):
    visual, textual = _layer(x, *weights[:3]), _layer(x, *weights[3:])
    return torch.where(mask[:, None], visual, textual)


class _MaskedFFN(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mask, *weights):
        ctx.save_for_backward(x, mask, *weights)
        out = x.new_empty(x.shape)
        for part, chosen, target in zip(
            *(each.split(BLOCK) for each in (x, mask, out)), strict=True
        ):
            target.copy_(_block(part, chosen, weights))
        return out

    @staticmethod
    def backward(ctx, grad):
        x, mask, *weights = ctx.saved_tensors
        d_x, d_w = x.new_empty(x.shape), [torch.zeros_like(w, dtype=torch.float32) for w in weights]
        parts = zip(*(each.split(BLOCK) for each in (x, mask, grad, d_x)), strict=True)
        for part, chosen, upstream, target in parts:
            with torch.enable_grad():
                leaves = [each.detach().requires_grad_() for each in (part, *weights)]
                out = _block(leaves[0], chosen, leaves[1:])
                d_part, *d_more = torch.autograd.grad(out, leaves, upstream)
            target.copy_(d_part)
            for total, more in zip(d_w, d_more, strict=True):
                total += more
        return d_x, None, *(total.to(x.dtype) for total in d_w)


def masked_ffn(x, w1, w2, w3, u1, u2, u3, mask):
    return _MaskedFFN.apply(x, mask, w1, w2, w3, u1, u2, u3)
