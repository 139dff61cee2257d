"""`rotate_half`: `[x1, x2] -> [-x2, x1]` along the last dimension; the smallest exercise.

If interleaved, pairs are adjacent: `(x[2i], x[2i + 1]) -> (-x[2i + 1], x[2i])`.

Source: `_rotate_half` in TransformerEngine's `transformer_engine/pytorch/attention/rope.py`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from common.ops._pairs import pairwise
from common.ops._views import layout_name, randn
from common.spec import (
    Axes,
    Axis,
    Case,
    Direction,
    Fact,
    Factors,
    Op,
    Row,
    Split,
    Table,
    Tier,
    Work,
)


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
class RotateHalfCase(Case):
    """One input of `rotate_half`."""

    sizes = ("shape",)  # the fields that hold sizes; records always state these fields

    track: str
    shape: tuple[int, ...]
    interleaved: bool = False

    @property
    def name(self) -> str:
        """`8192x2x32x128-bfloat16`: x's shape and dtype, then non-default options."""
        parts = ["x".join(map(str, self.shape)), self.dtype]
        parts += ["interleaved"] * self.interleaved + self.unusual
        return "-".join(parts + ["twin"] * self.twin)

    @property
    def kind(self) -> str:
        """The dtype and the pairing: halves or interleaved."""
        return f"{self.dtype} {self.interleaved}"

    def track_of(self, direction: Direction) -> str:
        """Return the case's track, the same in both directions."""
        return self.track


def draw(case: RotateHalfCase, generator: torch.Generator) -> dict[str, Any]:
    """Draw the arguments of one call."""
    x = randn(case.shape, case.dtype, case.layout, generator, values=case.values)
    return {"x": x, "interleaved": case.interleaved}


def work(case: RotateHalfCase, direction: Direction) -> Work:
    """Return the minimum work, the same in both directions.

    Read and write every element once; negate half of the elements.
    """
    elements = math.prod(case.shape)
    return Work(bytes=2 * elements * getattr(torch, case.dtype).itemsize, flops=elements // 2)


def cases(tier: Tier) -> Iterator[RotateHalfCase]:
    """Yield the cases of a tier."""
    if tier != "plot":
        yield from {"smoke": _smoke, "matrix": _matrix, "board": _board}[tier]()


def twin(case: RotateHalfCase) -> RotateHalfCase:
    """Return the reduced case: the first dimension is cut to 8, the rest is unchanged."""
    rows, *inner = case.shape
    return dataclasses.replace(case, shape=(rows if rows < 16 else 8, *inner), twin=True)


FACTORS: Factors = {
    "shape": ((10, 2, 4, 8), (3, 2, 5, 22), (7, 130), (37, 6)),
    "dtype": ("float32", "bfloat16", "float16"),
    "interleaved": (False, True),
    "layout": (
        "contiguous", "strided", "offset", "transposed", "reversed", "sparse", "expanded"
    ),
    "upstream": ("contiguous", "strided", "transposed", "expanded", "reversed"),
}  # fmt: skip
SUBSETS: tuple[Factors, ...] = (
    {"dtype": ("bfloat16", "float16")}, {"layout": ("contiguous",)}, {"interleaved": (False,)}
)  # fmt: skip
"""The values to which many solutions are limited; smoke cases cover every pair in each subset."""


def _case(*shape: int, **fields: Any) -> RotateHalfCase:
    track = "extended" if fields.get("interleaved") else "core"
    return RotateHalfCase(shape=shape, track=track, **fields)


def _smoke() -> Iterator[RotateHalfCase]:
    yield _case(10, 2, 4, 8)
    yield from _smoke_pairs()
    for shape in ((2,), (1, 1, 1, 2), (0, 2, 3, 8), (3, 2, 0), (3, 2, 1, 5, 6)):
        yield _case(*shape)
    yield _case(3, 2050)  # wider than any tile
    yield _case(256, 6)  # a multiple of every block size
    # all shapes differ, so that no case gets another case's result from a cache keyed by shape
    for values, d in (("zeros", 12), ("subnormal", 14), ("huge", 16)):
        yield _case(5, 2, d, values=values, dtype="float16")
        yield _case(5, 2, d, values=values, interleaved=True)
        yield _case(6, 2, d, upstream_values=values, dtype="float16")
    # bfloat16 has a larger range than float16
    yield _case(5, 2, 18, values="huge", upstream_values="huge", dtype="bfloat16")
    yield _case(3, 2, 16, layout="far", dtype="bfloat16")
    yield _case(3, 2, 16, upstream="far", dtype="bfloat16")


def _case_of(row: Row) -> RotateHalfCase:
    return _case(*row["shape"], **{name: row[name] for name in row if name != "shape"})


TABLE = Table(FACTORS, _case_of, subsets=SUBSETS)


def _smoke_pairs() -> Iterator[RotateHalfCase]:
    yield from map(TABLE.case_of, pairwise(FACTORS, subsets=SUBSETS))


def _matrix() -> Iterator[RotateHalfCase]:
    for dtype in ("float32", "bfloat16", "float16"):
        for rows in (1, 63, 1000, 4096):
            for width in (2, 66, 128, 1000, 2048):
                for interleaved in (False, True):
                    track = "extended" if interleaved else "core"
                    yield RotateHalfCase(
                        track=track, shape=(rows, 3, width), dtype=dtype, interleaved=interleaved
                    )


LARGE = RotateHalfCase(track="core", shape=(16400, 16, 64, 128), dtype="bfloat16")


def _board() -> Iterator[RotateHalfCase]:
    yield RotateHalfCase(track="core", shape=(10, 2, 4, 8), ranked_by="host")
    yield RotateHalfCase(track="core", shape=(8192, 2, 32, 128), dtype="bfloat16")
    yield RotateHalfCase(
        track="extended", shape=(8192, 2, 32, 128), dtype="bfloat16", interleaved=True
    )


ORDINALS = ("first", "second", "third", "fourth")


def axes(case: RotateHalfCase, arguments: Mapping[str, Any]) -> Axes:
    """Name the dimensions of the output and of x's gradient."""
    rows, d = len(case.shape) - 1, case.shape[-1]
    parts = {"the first half": range(d // 2), "the second half": range(d // 2, d)}
    if case.interleaved:
        parts = {
            "the first of each pair": range(0, d, 2),
            "the second of each pair": range(1, d, 2),
        }
    names = ["row"] if rows == 1 else [f"{ordinal} index" for ordinal in ORDINALS[:rows]]
    dimensions = (*map(Axis, names), Axis("feature", parts))
    return {"output": dimensions, "x": dimensions}


def facts(case: RotateHalfCase) -> dict[str, Fact]:
    """Return the case's properties."""
    return {
        "the number of rows": math.prod(case.shape[:-1]),
        "the number of elements": math.prod(case.shape),
        "d": case.shape[-1],
        "the number of dimensions": len(case.shape),
        "dtype": case.dtype,
        "interleaved": case.interleaved,
        "x": layout_name(case.shape, case.layout),
        "upstream": layout_name(case.shape, case.upstream),
        "values": case.values,
        "upstream's values": case.upstream_values,
    }


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
    output=lambda case: case.shape,
    work=work,
    workspace=lambda case: 2 * work(case, "forward").bytes,
    split=Split(0, {"x": 0}),
    axes=axes,
    facts=facts,
    table=TABLE,
    large=LARGE,
)
