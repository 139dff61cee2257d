"""The masked layers as modules: two sets of weights, of which a mask selects one for each token.

layer = MaskedFFN(2048, 5632)
y = layer(x, mask)  # x [batch, positions, 2048], mask bool [batch, positions] or flat
"""

import torch
from torch import nn

from .masked import masked_ffn, masked_linear

FFN = "gate_proj", "down_proj", "up_proj"
"""The weights w1, w2 and w3 of `masked_ffn`, by the names of Hugging Face's models."""


class MaskedLinear(nn.Module):
    """Two layers `nn.Linear`: `visual` for the tokens of the mask, `textual` for the others."""

    def __init__(self, in_features, out_features, bias=True, device=None, dtype=None):
        """Take the arguments of `nn.Linear`."""
        super().__init__()
        how = {"bias": bias, "device": device, "dtype": dtype}
        self.visual, self.textual = (nn.Linear(in_features, out_features, **how) for _ in range(2))

    def forward(self, x, mask):
        """Return [..., out_features] for x [..., in_features] and a mask, bool [...] or flat.

        Raises:
            ValueError: The shapes or the dtypes do not fit.
        """
        return _linear(x, self.visual, self.textual, mask.flatten())


class MaskedFFN(nn.Module):
    """Two feed-forward layers with SwiGLU: `visual` for the tokens of the mask, and `textual`.

    Each has `gate_proj`, `up_proj` and `down_proj`, as Llama's in Hugging Face's transformers.
    """

    def __init__(self, hidden_size, intermediate_size, bias=False, device=None, dtype=None):
        """Take the sizes; with `bias` the products are layers of their own, which is slower."""
        super().__init__()
        how = {"bias": bias, "device": device, "dtype": dtype}
        up, down = (hidden_size, intermediate_size), (intermediate_size, hidden_size)
        sizes = dict(zip(FFN, (up, down, up), strict=True))
        self.visual, self.textual = (
            nn.ModuleDict({name: nn.Linear(*size, **how) for name, size in sizes.items()})
            for _ in range(2)
        )

    def forward(self, x, mask):
        """Return x's shape for x [..., hidden_size] and a mask, bool [...] or flat.

        Raises:
            ValueError: The shapes or the dtypes do not fit.
        """
        mask, sets = mask.flatten(), (self.visual, self.textual)
        if self.visual["gate_proj"].bias is None:
            weights = [layers[name].weight for layers in sets for name in FFN]
            return masked_ffn(x.reshape(-1, x.shape[-1]), *weights, mask).reshape(x.shape)
        gate, down, up = ([layers[name] for layers in sets] for name in FFN)
        hidden = nn.functional.silu(_linear(x, *gate, mask)) * _linear(x, *up, mask)
        return _linear(hidden, *down, mask)


def _linear(x, visual, textual, mask):
    """Return for each token what the `nn.Linear` of its kind returns, [..., out_features]."""
    out = masked_linear(x.reshape(-1, x.shape[-1]), visual.weight, textual.weight, mask)
    if visual.bias is not None:
        biases = (each.bias.to(out.dtype) for each in (visual, textual))  # as autocast casts them
        out = out + torch.where(mask[:, None], *biases)
    return out.reshape(*x.shape[:-1], out.shape[-1])
