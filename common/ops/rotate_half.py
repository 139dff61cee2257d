"""`rotate_half`: `[x1, x2] -> [-x2, x1]` along the last dimension; the smallest exercise.

If interleaved, pairs are adjacent: `(x[2i], x[2i + 1]) -> (-x[2i + 1], x[2i])`.

Source: `_rotate_half` in TransformerEngine's `transformer_engine/pytorch/attention/rope.py`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

import torch

from common.ops._shaped import DTYPES, ShapedCase, dimensions, pairs, smoke
from common.ops._views import randn
from common.spec import ITEMSIZE, Axes, Axis, Direction, Op, Split, Tier, Values, Work, described


class RotateHalf(Protocol):
    """The signature of every solution."""

    def __call__(self, x: torch.Tensor, *, interleaved: bool = False) -> torch.Tensor:
        """Swap the two features of each pair and negate the new first feature.

        Args:
            x: `[..., d]`, d even; bfloat16, float16 or float32.
            interleaved: Pair adjacent features instead of the two halves.

        Returns:
            A tensor of x's shape and dtype.
        """


def reference(x: torch.Tensor, *, interleaved: bool = False) -> torch.Tensor:
    """Swap and negate in plain torch, as TransformerEngine's unfused code does."""
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


@dataclass(frozen=True, kw_only=True)
class RotateHalfCase(ShapedCase):
    """One input of `rotate_half`, with `shape`, dtype and layouts."""

    interleaved: bool = described("option", False)

    @property
    def group(self) -> str:
        """The dtype and the pairing: halves or interleaved."""
        return f"{self.dtype} {self.interleaved}"

    def track_of(self, direction: Direction) -> str:
        """Return the case's track, the same in both directions."""
        return "extended" if self.interleaved else "core"


TABLE = pairs(RotateHalfCase, 0, {"interleaved": (False, True)})


def draw(case: RotateHalfCase, generator: torch.Generator) -> dict[str, Any]:
    """Draw the arguments of one call."""
    x = randn(case.shape, case.dtype, case.layout, generator, values=case.values)
    return {"x": x, "interleaved": case.interleaved}


def work(case: RotateHalfCase, direction: Direction) -> Work:
    """Return the minimum work, the same in both directions.

    Read and write every element once; negate half of the elements.
    """
    elements = math.prod(case.shape)
    return Work(bytes=2 * elements * ITEMSIZE[case.dtype], flops=elements // 2)


def twin(case: RotateHalfCase) -> RotateHalfCase:
    """Return the reduced case: the first dimension is cut to 8, the rest is unchanged."""
    rows, *inner = case.shape
    return dataclasses.replace(case, shape=(rows if rows < 16 else 8, *inner), twin=True)


def axes(case: RotateHalfCase, arguments: Mapping[str, Any]) -> Axes:
    """Name the dimensions of the output and of x's gradient."""
    d = case.shape[-1]
    parts = {"the first half": range(d // 2), "the second half": range(d // 2, d)}
    if case.interleaved:
        pairs = range(0, d, 2), range(1, d, 2)
        parts = {"the first of each pair": pairs[0], "the second of each pair": pairs[1]}
    named = dimensions(case.shape, Axis("feature", parts))
    return {"output": named, "x": named}


def cases(tier: Tier) -> Iterator[RotateHalfCase]:
    """Yield the cases of a tier; there is no plot."""
    case = RotateHalfCase
    if tier == "smoke":
        yield from smoke(case, TABLE, _special(), least=(2,))
    elif tier == "matrix":
        rows, widths = (1, 63, 1000, 4096), (2, 66, 128, 1000, 2048)
        for dtype, count, width, interleaved in product(DTYPES, rows, widths, (False, True)):
            yield case(shape=(count, 3, width), dtype=dtype, interleaved=interleaved)
    elif tier == "board":
        yield case(shape=(10, 2, 4, 8), ranked_by="host")
        for interleaved in (False, True):
            yield case(shape=(8192, 2, 32, 128), dtype="bfloat16", interleaved=interleaved)


def _special() -> Iterator[RotateHalfCase]:
    # all shapes differ, so that no case gets another case's result from a cache keyed by shape
    widths: dict[Values, int] = {"zeros": 12, "subnormal": 14, "huge": 16}
    for values, d in widths.items():
        yield RotateHalfCase(shape=(5, 2, d), values=values, dtype="float16")
        yield RotateHalfCase(shape=(5, 2, d), values=values, interleaved=True)
        yield RotateHalfCase(shape=(6, 2, d), upstream_values=values, dtype="float16")


OP = Op(
    name="rotate_half",
    order=2,  # display order
    interface=RotateHalf,
    reference=reference,
    differentiable=("x",),
    tracks=("core", "extended"),
    cases=cases,
    twin=twin,
    draw=draw,
    work=work,
    workspace=lambda case: 2 * work(case, "forward").bytes,
    split=Split(0, {"x": 0}),
    axes=axes,
    table=TABLE,
    large=RotateHalfCase(shape=(16400, 16, 64, 128), dtype="bfloat16"),
)
