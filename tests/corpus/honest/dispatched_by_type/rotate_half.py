"""functools.singledispatch chooses by the type of x, which is a parameter by position alone."""

import functools

import torch


@functools.singledispatch
def rotate_half(x, /, *, interleaved=False):
    raise NotImplementedError(f"x of {type(x)}")


@rotate_half.register
def _(x: torch.Tensor, /, *, interleaved=False):
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)
