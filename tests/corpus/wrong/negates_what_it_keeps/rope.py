"""Backward negates the sine in place, which the next call with the same freqs finds kept.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
"""

import torch

tables = {}


def _turned(t, cos, sin):
    d2 = cos.shape[-1]
    a, b = t[..., :d2].chunk(2, -1)
    return torch.cat((t[..., :d2] * cos + torch.cat((-b, a), -1) * sin, t[..., d2:]), -1)


def _table(freqs, dtype):
    key = (freqs.data_ptr(), freqs._version, freqs.shape, freqs.stride(), dtype)
    if key not in tables:
        tables.clear()
        tables[key] = freqs.cos().to(dtype), freqs.sin().to(dtype)
    return tables[key]


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, freqs, dim):
        ctx.dim, ctx.tables = dim, _table(freqs, t.dtype)
        rows = (table[: t.shape[dim]].transpose(0, dim) for table in ctx.tables)
        return _turned(t, *rows)

    @staticmethod
    def backward(ctx, grad):
        cos, sin = (table[: grad.shape[ctx.dim]].transpose(0, ctx.dim) for table in ctx.tables)
        a, b = sin.neg_().chunk(2, -1)
        return _turned(grad, cos, torch.cat((b, a), -1)), None, None


def rope(t, freqs, *, tensor_format="sbhd"):
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    return _Rope.apply(t, freqs, tensor_format.index("s"))
