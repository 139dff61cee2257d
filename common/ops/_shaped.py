"""Ops whose output has the shape of their inputs, `[..., d]`.

For elementwise ops, and for ops along the last dimension, such as a normalization. `shaped` derives
the cases, inputs, minimum work and names in messages from the names of the arguments:

    OP = shaped(
        name="scaled",
        interface=Scaled,
        reference=reference,
        rows=("x",),
        vectors=("scale",),
        flops=(1, 3),
    )

An op with options defines a case, `class ScaledCase(ShapedCase)`, with a field for each option, and
lists the options' values: `case=ScaledCase, options={"eps": (1e-6, 1e-3)}`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from common.ops._pairs import pairwise
from common.ops._views import layout_name, place, randn
from common.spec import (
    ITEMSIZE,
    SLACK,
    Axes,
    Axis,
    Case,
    Direction,
    Fact,
    Factors,
    Layout,
    Op,
    Reference,
    Row,
    Split,
    Table,
    Tier,
    Values,
    Work,
)

Shape = tuple[int, ...]
DTYPES = ("float32", "bfloat16", "float16")
HALF_TYPES: Factors = {"dtype": ("bfloat16", "float16")}
WIDEST_TWIN = 512
BOARD: tuple[Shape, ...] = ((2048, 4096), (16384, 4096), (4096, 14336))
"""The shapes of the board, timed in bfloat16; the first shape is timed in float16, too."""
PLOTTED = (512, 1024, 2048, 4096, 8192, 16384, 32768)
"""The plotted numbers of rows; each row has 4096 elements."""
ROW_LAYOUTS: tuple[Layout, ...] = ("contiguous", "strided", "transposed", "sparse")
VECTOR_LAYOUTS: tuple[Layout, ...] = ("contiguous", "offset", "sparse")
FACTORS: Factors = {
    "shape": ((10, 2, 4, 8), (3, 2, 5, 22), (7, 130), (37, 6)),
    "dtype": DTYPES,
    "layout": (
        "contiguous", "strided", "offset", "transposed", "reversed", "sparse", "expanded"
    ),
    "upstream": ("contiguous", "strided", "transposed", "expanded", "reversed"),
}  # fmt: skip
ORDINALS = ("first", "second", "third", "fourth", "fifth")


@dataclass(frozen=True, kw_only=True)
class ShapedCase(Case):
    """One input of an op made by `shaped`."""

    sizes = ("shape",)

    shape: Shape
    others: tuple[Layout, ...] = ()
    """The layout of each argument after the first; empty: all contiguous."""

    @property
    def name(self) -> str:
        """`8192x4096-bfloat16`: the shape, the dtype, then non-default options."""
        parts = ["x".join(map(str, self.shape)), self.dtype]
        options = dataclasses.fields(self)[len(dataclasses.fields(ShapedCase)) :]
        for option in options:
            value = getattr(self, option.name)
            parts += [f"{option.name}={value}"] * (value != option.default)
        parts += self.unusual
        # the first two letters of each layout: others=co+tr
        short = "+".join(layout[:2] for layout in self.others)
        parts += [f"others={short}"] * bool(self.others)
        return "-".join(parts + ["twin"] * self.twin)

    def track_of(self, direction: Direction) -> str:
        """Return `forward` or, for backward, `training`."""
        return "forward" if direction == "forward" else "training"


@dataclass(frozen=True, kw_only=True)
class _Shaped:
    """The arguments of `shaped`, from which the fields of the op are computed."""

    case: type[ShapedCase]
    rows: tuple[str, ...]
    vectors: tuple[str, ...]
    options: Factors
    flops: tuple[int, int]
    board: tuple[Shape, ...]
    values: tuple[Values, ...]

    @property
    def arguments(self) -> tuple[str, ...]:
        return (*self.rows, *self.vectors)

    def shape(self, case: ShapedCase, name: str) -> Shape:
        return case.shape if name in self.rows else case.shape[-1:]

    def layouts(self, case: ShapedCase) -> dict[str, Layout]:
        return dict(zip(self.arguments[1:], case.others, strict=False))

    def draw(self, case: ShapedCase, generator: torch.Generator) -> dict[str, Any]:
        first, *others = self.arguments
        values = randn(case.shape, case.dtype, case.layout, generator, values=case.values)
        drawn: dict[str, Any] = {first: values}
        layouts = self.layouts(case)
        for name in others:
            plain = randn(self.shape(case, name), case.dtype, "contiguous", generator)
            drawn[name] = place(plain, layouts.get(name, "contiguous"))
        return drawn | {name: getattr(case, name) for name in self.options}

    def work(self, case: ShapedCase, direction: Direction) -> Work:
        """Read each input once and write the output once; in backward, also write each gradient."""
        elements = math.prod(case.shape)
        inputs = sum(math.prod(self.shape(case, name)) for name in self.arguments)
        moved = inputs + elements + inputs * (direction == "backward")
        flops = self.flops[direction == "backward"]
        return Work(bytes=moved * ITEMSIZE[case.dtype], flops=flops * elements)

    def workspace(self, case: ShapedCase) -> int:
        """Return the bytes of eager's intermediate results: at most eight float32 tensors."""
        return 8 * 4 * math.prod(case.shape)

    def axes(self, case: ShapedCase, arguments: Mapping[str, Any]) -> Axes:
        count, feature = len(case.shape) - 1, Axis("feature")
        names = ["row"] if count == 1 else [f"{ordinal} index" for ordinal in ORDINALS[:count]]
        dimensions = (*map(Axis, names), feature)
        vectors = dict.fromkeys(self.vectors, (feature,))
        return {"output": dimensions, **dict.fromkeys(self.rows, dimensions), **vectors}

    def facts(self, case: ShapedCase) -> dict[str, Fact]:
        others, layouts = self.arguments[1:], self.layouts(case)
        return {
            "the number of rows": math.prod(case.shape[:-1]),
            "the number of elements": math.prod(case.shape),
            "d": case.shape[-1],
            "the number of dimensions": len(case.shape),
            "dtype": case.dtype,
            **{name: getattr(case, name) for name in self.options},
            self.arguments[0]: layout_name(case.shape, case.layout),
            **{
                other: layout_name(self.shape(case, other), layouts.get(other, "contiguous"))
                for other in others
            },
            "upstream": layout_name(case.shape, case.upstream),
            "values": case.values,
            "upstream's values": case.upstream_values,
        }

    # --- cases ------------------------------------------------------------------------------------

    @functools.cached_property
    def table(self) -> Table[ShapedCase]:
        layouts = {f"layout of {name}": ROW_LAYOUTS for name in self.rows[1:]}
        layouts |= {f"layout of {name}": VECTOR_LAYOUTS for name in self.vectors}
        contiguous = dict.fromkeys(("layout", *layouts), ("contiguous",))
        defaults = {name: values[:1] for name, values in self.options.items()}
        subsets = (HALF_TYPES, contiguous, *([defaults] if defaults else []))
        return Table({**FACTORS, **layouts, **self.options}, self._case_of, subsets=subsets)

    def _case_of(self, row: Row) -> ShapedCase:
        layouts = [f"layout of {name}" for name in self.arguments[1:]]
        fields = {name: value for name, value in row.items() if name not in layouts}
        return self.case(**fields, others=tuple(row[name] for name in layouts))

    def twin(self, case: ShapedCase) -> ShapedCase:
        """Return the reduced case: divide the width by a power of two, and cut the rows."""
        rows, *between, width = case.shape
        while width > WIDEST_TWIN:
            width //= 2
        if rows > 64:
            rows = 2 + rows // 8192 if between else 32 + rows // 512
        return dataclasses.replace(case, shape=(rows, *between, width), twin=True)

    def cases(self, tier: Tier) -> Iterator[ShapedCase]:
        tiers = {"smoke": self._smoke, "matrix": self._matrix, "board": self._board}
        # of an op of one argument, the table of pairs repeats a case
        yield from dict.fromkeys(tiers.get(tier, self._plot)())

    def _smoke(self) -> Iterator[ShapedCase]:
        case = self.case
        yield case(shape=(10, 2, 4, 8))
        table = self.table
        yield from map(table.case_of, pairwise(table.factors, subsets=table.subsets))
        for shape in ((1, 2), (1, 1, 1, 2), (0, 2, 3, 8), (3, 2, 0), (3, 2, 1, 5, 6)):
            yield case(shape=shape)
        yield case(shape=(3, 2050))  # wider than any tile
        yield case(shape=(256, 6))  # the last block of rows is full, too
        for dtype in DTYPES[1:]:
            yield case(shape=(5, 3000), dtype=dtype)  # exposes low-precision sums
        if self.vectors:
            # exposes a sum over the rows that is rounded after each block
            yield case(shape=(2100, 8), dtype="bfloat16")
        # all shapes differ, so that no case gets another case's result from a cache keyed by shape
        special: dict[Values, int] = {"zeros": 12, "subnormal": 14, "huge": 16}
        for values, d in special.items():
            if values in self.values:
                yield case(shape=(5, 2, d), values=values, dtype="float16")
            yield case(shape=(6, 2, d), upstream_values=values, dtype="float16")
        # bfloat16 has a larger range than float16
        yield case(shape=(5, 2, 18), values="huge", upstream_values="huge", dtype="bfloat16")
        yield case(shape=(3, 2, 16), layout="far", dtype="bfloat16")
        yield case(shape=(3, 2, 16), upstream="far", dtype="bfloat16")

    def _matrix(self) -> Iterator[ShapedCase]:
        for dtype in DTYPES:
            for rows in (1, 63, 1000, 4096):
                for width in (2, 66, 128, 1000, 2048):
                    yield self.case(shape=(rows, width), dtype=dtype)

    def _board(self) -> Iterator[ShapedCase]:
        yield self.case(shape=(10, 2, 4, 8), ranked_by="host")
        for shape in self.board:
            yield self.case(shape=shape, dtype="bfloat16")
        yield self.case(shape=self.board[0], dtype="float16")

    def _plot(self) -> Iterator[ShapedCase]:
        for rows in PLOTTED:
            yield self.case(shape=(rows, 4096), dtype="bfloat16")


def shaped(
    *,
    name: str,
    interface: type,
    reference: Reference,
    rows: tuple[str, ...],
    flops: tuple[int, int],
    vectors: tuple[str, ...] = (),
    case: type[ShapedCase] = ShapedCase,
    options: Mapping[str, Sequence[Any]] | None = None,
    board: tuple[Shape, ...] = BOARD,
    values: tuple[Values, ...] = ("zeros", "subnormal", "huge"),
    slack: Mapping[str, float] = SLACK,
    order: int = 1000,
) -> Op[ShapedCase]:
    """Return the op.

    Args:
        name: The name of the op's file, without `.py`.
        interface: The `typing.Protocol` of solutions.
        reference: The op in plain torch.
        rows: The arguments of the output's shape, `[..., d]`.
        flops: The operations for each element of the output, forward and backward.
        vectors: The arguments of shape `[d]`.
        case: The class of cases, if the op has options.
        options: The values of each option in smoke cases; the first is the default.
        board: The shapes of the board.
        values: The first argument's special values for which results stay in the dtype's range.
        slack: The largest permitted ratio of a solution's error to eager's error, by dtype.
        order: The op's display order.

    Raises:
        TypeError: `rows` or `vectors` is not a tuple, such as ("x"), which lacks a comma.
        ValueError: `rows` and `vectors` together do not name the interface's tensors.
    """
    for field, value in (("rows", rows), ("vectors", vectors)):
        if not isinstance(value, tuple):
            raise TypeError(f"{field} is {value!r}, not a tuple of names: ('x',) has a comma")
    parameters = [*inspect.signature(interface.__call__).parameters.values()][1:]
    tensors = [
        parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY
    ]
    if {*rows, *vectors} != {*tensors}:
        raise ValueError(f"rows and vectors name {[*rows, *vectors]}, the interface {tensors}")
    fields = _Shaped(
        case=case, rows=rows, vectors=vectors, options=options or {}, flops=flops, board=board,
        values=values,
    )  # fmt: skip
    return Op(
        name=name,
        order=order,
        interface=interface,
        reference=reference,
        differentiable=fields.arguments,
        tracks=("forward", "training"),
        cases=fields.cases,
        twin=fields.twin,
        draw=fields.draw,
        output=lambda case: case.shape,
        work=fields.work,
        workspace=fields.workspace,
        split=Split(0, dict.fromkeys(rows, 0)),
        axes=fields.axes,
        facts=fields.facts,
        slack=slack,
        table=fields.table,
        layouts=fields.layouts,
        large=fields.case(shape=(2**20 + 64, 2048), dtype="bfloat16"),
    )
