"""`rotate_half`: `[x1, x2] -> [-x2, x1]` on the last dimension; the smallest exercise.

Interleaved, the pairs are neighbours: `(x[2i], x[2i + 1]) -> (-x[2i + 1], x[2i])`. Source:
`_rotate_half` of TransformerEngine's `transformer_engine/pytorch/attention/rope.py`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from common.ops._views import Layout, randn
from common.spec import Case, Direction, Op, Tier, Work


class RotateHalf(Protocol):
    """x: `[..., d]`, d even, bfloat16, float16 or float32. Returns the same shape and dtype."""

    def __call__(self, x: torch.Tensor, *, interleaved: bool = False) -> torch.Tensor: ...


def reference(x: torch.Tensor, *, interleaved: bool = False) -> torch.Tensor:
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


@dataclass(frozen=True, kw_only=True)
class RotateHalfCase(Case):
    sizes = ("shape",)

    track: str
    shape: tuple[int, ...]
    interleaved: bool = False
    layout: Layout = "contiguous"

    @property
    def name(self) -> str:
        parts = ["x".join(map(str, self.shape)), self.dtype]
        parts += ["interleaved"] * self.interleaved
        parts += [self.layout] * (self.layout != "contiguous") + ["twin"] * self.twin
        return "-".join(parts)

    def track_of(self, direction: Direction) -> str:
        return self.track


def draw(case: RotateHalfCase, generator: torch.Generator) -> dict[str, Any]:
    x = randn(case.shape, case.dtype, case.layout, generator)
    return {"x": x, "interleaved": case.interleaved}


def work(case: RotateHalfCase, direction: Direction) -> Work:
    """Read and write every element once; half of them change sign. Backward does the same."""
    elements = math.prod(case.shape)
    return Work(bytes=2 * elements * getattr(torch, case.dtype).itemsize, flops=elements // 2)


def cases(tier: Tier) -> Iterator[RotateHalfCase]:
    if tier != "plot":
        yield from {"smoke": _smoke, "matrix": _matrix, "board": _board}[tier]()


def twin(case: RotateHalfCase) -> RotateHalfCase:
    return dataclasses.replace(case, shape=(8, 2, *case.shape[2:]), twin=True)


def _smoke() -> Iterator[RotateHalfCase]:
    def case(*shape: int, **fields: Any) -> RotateHalfCase:
        track = "extended" if fields.get("interleaved") else "core"
        return RotateHalfCase(shape=shape, track=track, **fields)

    for dtype in ("float32", "bfloat16", "float16"):
        yield case(10, 2, 4, 8, dtype=dtype)
        yield case(3, 2, 5, 22, dtype=dtype)
        yield case(3, 2, 5, 22, dtype=dtype, interleaved=True)
    for layout in ("strided", "offset", "transposed", "sparse"):
        yield case(5, 2, 3, 12, layout=layout)
        yield case(5, 2, 3, 12, layout=layout, interleaved=True)
    for shape in ((2,), (1, 1, 1, 2), (0, 2, 3, 8), (3, 2, 0), (7, 130)):
        yield case(*shape)


def _matrix() -> Iterator[RotateHalfCase]:
    for dtype in ("float32", "bfloat16", "float16"):
        for rows in (1, 63, 1000, 4096):
            for width in (2, 66, 128, 1000, 2048):
                for interleaved in (False, True):
                    track = "extended" if interleaved else "core"
                    yield RotateHalfCase(
                        track=track, shape=(rows, 3, width), dtype=dtype, interleaved=interleaved
                    )


def _board() -> Iterator[RotateHalfCase]:
    yield RotateHalfCase(track="core", shape=(10, 2, 4, 8), ranked_by="host")
    yield RotateHalfCase(track="core", shape=(8192, 2, 32, 128), dtype="bfloat16")
    yield RotateHalfCase(
        track="extended", shape=(8192, 2, 32, 128), dtype="bfloat16", interleaved=True
    )


OP = Op(
    name="rotate_half",
    interface=RotateHalf,
    reference=reference,
    differentiable=("x",),
    tracks=("core", "extended"),
    cases=cases,
    twin=twin,
    draw=draw,
    work=work,
)
