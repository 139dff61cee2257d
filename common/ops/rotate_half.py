"""`rotate_half`: `[x1, x2] -> [-x2, x1]` along the last dimension; the smallest exercise.

If interleaved, pairs are adjacent: `(x[2i], x[2i + 1]) -> (-x[2i + 1], x[2i])`.

Source: `_rotate_half` in TransformerEngine's `transformer_engine/pytorch/attention/rope.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from common.ops._shaped import dimensions, shaped
from common.spec import ITEMSIZE, Axes, Axis


class RotateHalf(Protocol):
    """The signature of every solution."""

    def __call__(self, x: Tensor, *, interleaved: bool = False) -> Tensor:
        """Swap the two features of each pair and negate the new first feature.

        Args:
            x: `[..., d]`, d even; bfloat16, float16 or float32.
            interleaved: Pair adjacent features instead of the two halves.

        Returns:
            A tensor of x's shape and dtype.
        """


def reference(x: Tensor, *, interleaved: bool = False) -> Tensor:
    """Swap and negate in plain torch, as TransformerEngine's unfused code does."""
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def halves(d: int, interleaved: bool, of: str = "") -> Mapping[str, range]:
    """Name the indices of the first features of all pairs, and of the second ones."""
    if interleaved:
        return {"the first of each pair": range(0, d, 2), "the second of each pair": range(1, d, 2)}
    return {f"the first half{of}": range(d // 2), f"the second half{of}": range(d // 2, d)}


def axes(case: Any, arguments: Mapping[str, Any]) -> Axes:
    """Name the dimensions of the output and of x's gradient."""
    parts = halves(case.shape[-1], case.interleaved)
    named = dimensions(case.shape, Axis("feature", parts))
    return {"output": named, "x": named}


TIMED = {"shape": (8192, 2, 32, 128), "dtype": "bfloat16"}

OP = shaped(
    name="rotate_half",
    order=2,  # display order
    interface=RotateHalf,
    reference=reference,
    rows=("x",),
    options={"interleaved": (False, True)},
    flops=(0.5, 0.5),  # half of the elements are negated
    linear=True,
    board=(TIMED, TIMED | {"interleaved": True}),
    tracks={
        "core": "The pairs are one feature of each half.",
        "extended": "The pairs are adjacent features (interleaved).",
    },
    track_of=lambda case: "extended" if case.interleaved else "core",
    workspace=lambda case: 4 * math.prod(case.shape) * ITEMSIZE[case.dtype],
    axes=axes,
)
