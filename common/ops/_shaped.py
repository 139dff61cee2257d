"""Ops whose output has the shape of their inputs, `[..., d]`; see `_skeleton.py`.

For elementwise ops, and for ops along the last dimension, such as a normalization. `shaped` derives
the cases, inputs, minimum work and names in messages from the names of the arguments.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, Self

import torch

from common import spec
from common.ops import _names
from common.ops._draw import place, randn
from common.ops._pairs import Factors, PairTable
from common.spec import DTYPES, ITEMSIZE, Axis, Case, Tier, Values, described

Shape = tuple[int, ...]
BOARD: tuple[Mapping[str, Any], ...] = (
    {"shape": (2048, 4096), "dtype": "bfloat16"},
    {"shape": (16384, 4096), "dtype": "bfloat16"},
    {"shape": (4096, 14336), "dtype": "bfloat16"},
    {"shape": (2048, 4096), "dtype": "float16"},
)
"""The cases of the board, after one that is ranked by the host's time."""
LAYOUTS: Factors = {
    "layout": ("contiguous", "strided", "offset", "transposed", "reversed", "sparse", "expanded"),
    "upstream": ("contiguous", "strided", "transposed", "expanded", "reversed"),
    "rows": ("contiguous", "strided", "transposed", "sparse"),
    "vectors": ("contiguous", "offset", "sparse"),
}
"""The layouts of the first argument, of the upstream gradient and of the other arguments."""
SPECIAL: Mapping[Values, int] = {"zeros": 12, "subnormal": 14, "huge": 16}
"""The special values, each with a width of its own: no case has another case's shape, since a
kernel could get that case's result from a cache by shape."""


@dataclass(frozen=True, kw_only=True)
class ShapedCase(Case):
    """One input of an op with the output's shape; `shaped` adds the op's options."""

    shape: Shape

    @classmethod
    def of_head(cls, words: list[str]) -> Self:
        """Read `8192x2x32x128-bfloat16`."""
        return cls(shape=_names.sizes(words), dtype=_names.one_of(words, DTYPES, "a dtype"))

    @property
    def measures(self) -> dict[str, spec.Fact]:
        """The numbers of rows, elements and dimensions, and the width."""
        return {
            "the number of rows": math.prod(self.shape[:-1]),
            "the number of elements": math.prod(self.shape),
            "d": self.shape[-1],
            "the number of dimensions": len(self.shape),
        }

    @property
    def group(self) -> str:
        """The dtype and the options."""
        return " ".join(map(str, (self.dtype, *self.facts("option").values())))


def dimensions(shape: Shape, features: Axis) -> tuple[Axis, ...]:
    """Name the dimensions of a tensor of the output's shape."""
    count = len(shape) - 1
    names = ["row"] if count == 1 else [f"{ordinal} index" for ordinal in spec.ORDINALS[:count]]
    return (*map(Axis, names), features)


def twin(case: ShapedCase) -> ShapedCase:
    """Return the reduced case: divide the width by a power of two, and cut the rows."""
    rows, *between, width = case.shape
    while width > spec.WIDEST_TWIN:
        width //= 2
    if rows > 64:
        rows = 7 + rows // 8192 if between else 32 + rows // 512
    return dataclasses.replace(case, shape=(rows, *between, width), twin=True)


def shaped(
    *,
    rows: tuple[str, ...],
    flops: tuple[float, float],
    vectors: tuple[str, ...] = (),
    options: Factors | None = None,
    linear: bool = False,
    board: Iterable[Mapping[str, Any]] = BOARD,
    values: tuple[Values, ...] = (*SPECIAL,),
    **fields: Any,
) -> spec.Op[ShapedCase]:
    """Return the op.

    Args:
        rows: The arguments of the output's shape, `[..., d]`.
        flops: The operations for each element of the output, forward and backward.
        vectors: The arguments of shape `[d]`.
        options: The values of each option in smoke cases; the first is the default.
        linear: Whether each element of the output is a linear function of a few elements: no sum is
            long, and backward needs no argument.
        board: The fields of the board's cases.
        values: The first argument's special values for which results stay in the dtype's range.
        fields: The op's interface, a `typing.Protocol`, its name and reference, and fields in place
            of those that follow from it.
    """
    arguments, options = (*rows, *vectors), options or {}
    others = {
        f"{name}_layout": LAYOUTS["rows" if name in rows else "vectors"] for name in arguments[1:]
    }
    own = [
        (name, Literal[*given], described("option", given[0])) for name, given in options.items()
    ]
    make = spec.with_layouts(ShapedCase, others, own)
    first = {name: given[:1] for name, given in options.items()}
    table = PairTable(
        {
            "shape": ((10, 2, 4, 8), (3, 2, 5, 22), (7, 130), (37, 6)),
            "dtype": DTYPES,
            **options,
            "layout": LAYOUTS["layout"],
            "upstream": LAYOUTS["upstream"],
            **others,
        },
        make,
        subsets=[
            {"dtype": DTYPES[1:]},
            dict.fromkeys(("layout", *others), ("contiguous",)),
            *([first] if first else []),
        ],
    )

    def shape(case: ShapedCase, argument: str) -> Shape:
        return case.shape if argument in rows else case.shape[-1:]

    def draw(case: ShapedCase, generator: torch.Generator) -> dict[str, Any]:
        drawn = {rows[0]: randn(case.shape, case.dtype, case.layout, generator, values=case.values)}
        for argument, layout in case.layouts.items():
            plain = randn(shape(case, argument), case.dtype, "contiguous", generator)
            drawn[argument] = place(plain, layout)
        return {**drawn, **{option: getattr(case, option) for option in options}}

    def work(case: ShapedCase, direction: spec.Direction) -> spec.Work:
        """Read each input once and write the output once; in backward, also write each gradient."""
        elements = math.prod(case.shape)
        inputs = sum(math.prod(shape(case, argument)) for argument in arguments)
        moved = inputs + elements + inputs * (direction == "backward" and not linear)
        operations = flops[direction == "backward"] * elements
        return spec.Work(moved * ITEMSIZE[case.dtype], int(operations))

    def axes(case: ShapedCase, _: Mapping[str, Any]) -> spec.Axes:
        named = dict.fromkeys(("output", *rows), dimensions(case.shape, Axis("feature")))
        return {**named, **dict.fromkeys(vectors, (Axis("feature"),))}

    def smoke() -> Iterator[ShapedCase]:
        yield make(shape=(10, 2, 4, 8))
        yield from table.cases()
        for shape in ((2,), (1, 1, 1, 2), (0, 2, 3, 8), (3, 2, 0), (3, 2, 1, 5, 6)):
            yield make(shape=shape)
        yield make(shape=(3, 2050))  # wider than any tile
        yield make(shape=(256, 6))  # the last block of rows is full, too
        for dtype in DTYPES[1:] * (not linear):
            yield make(shape=(5, 3000), dtype=dtype)  # exposes low-precision sums
        if vectors:
            # exposes a sum over the rows that is rounded after each block
            yield make(shape=(2100, 8), dtype="bfloat16")
        last = {name: given[-1] for name, given in options.items()}
        for each, d in SPECIAL.items():
            if each in values:
                yield make(shape=(5, 2, d), values=each, dtype="float16")
                yield from [make(shape=(5, 2, d), values=each, **last)] if last else []
            yield make(shape=(6, 2, d), upstream_values=each, dtype="float16")
        # bfloat16 has a larger range than float16
        yield make(shape=(5, 2, 18), values="huge", upstream_values="huge", dtype="bfloat16")
        yield make(shape=(3, 2, 16), layout="far", dtype="bfloat16")
        yield make(shape=(3, 2, 16), upstream="far", dtype="bfloat16")

    def cases(tier: Tier) -> Iterator[ShapedCase]:
        if tier == "smoke":
            # of an op of one argument, the table of pairs repeats a case
            yield from dict.fromkeys(smoke())
        elif tier == "matrix":
            sizes = (1, 63, 1000, 4096), (2, 66, 128, 1000, 2048)
            for dtype, count, width, *given in product(DTYPES, *sizes, *options.values()):
                named = dict(zip(options, given, strict=True))
                yield make(shape=(count, 3, width), dtype=dtype, **named)
        elif tier == "board":
            host = make(shape=(10, 2, 4, 8), ranked_by="host")
            yield from dict.fromkeys([host, *(make(**case) for case in board)])

    derived = {
        "differentiable": arguments,
        "cases": cases,
        "twin": twin,
        "draw": draw,
        "work": work,
        "workspace": lambda case: 8 * 4 * math.prod(case.shape),  # at most eight float32 tensors
        "split": dict.fromkeys(("output", *rows), 0),
        "axes": axes,
        "table": table,
        "large": make(shape=(16400, 16, 64, 128), dtype="bfloat16"),
    }
    return spec.Op(**{**derived, **fields})
