"""Hooks on tensors of its own bring each gradient to zero for the tokens of the other kind."""

import torch
from torch.nn.functional import linear, silu


def _layer(x, chosen, up, down, gate):
    """Zero rows of the other kind, before and after, whose gradient a hook removes"""
    tokens = x.masked_fill(~chosen[:, None], 0)
    hidden = silu(linear(tokens, up)) * linear(tokens, gate)
    if hidden.requires_grad:
        hidden.register_hook(lambda grad: grad.masked_fill(~chosen[:, None], 0))
    return linear(hidden, down)


def masked_ffn(x, w1, w2, w3, u1, u2, u3, mask):
    visual, textual = _layer(x, mask, w1, w2, w3), _layer(x, ~mask, u1, u2, u3)
    return torch.where(mask[:, None], visual, textual)
