"""Ops whose output has the shape of their inputs, `[..., d]`.

For elementwise ops, and for ops along the last dimension, such as a normalization. `shaped` derives
the cases, inputs, minimum work and names in messages from the names of the arguments:

    OP = shaped(
        name="scaled",
        interface=Scaled,
        reference=reference,
        rows=("x",),
        vectors=("scale",),
        options={"eps": (1e-6, 1e-3)},
        flops=(1, 3),
    )
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch

from common import spec
from common.ops._pairs import rows_of
from common.ops._views import place, randn
from common.spec import ITEMSIZE, Axis, Case, Factors, Layout, PairTable, Tier, Values, described

Shape = tuple[int, ...]
DTYPES = ("float32", "bfloat16", "float16")
CONTIGUOUS: tuple[Layout, ...] = ("contiguous",)
WIDEST_TWIN = 512
BOARD: tuple[Shape, ...] = ((2048, 4096), (16384, 4096), (4096, 14336))
"""The shapes of the board, timed in bfloat16; the first shape is timed in float16, too."""
PLOTTED = (512, 1024, 2048, 4096, 8192, 16384, 32768)
"""The plotted numbers of rows; each row has 4096 elements."""
ROW_LAYOUTS: tuple[Layout, ...] = ("contiguous", "strided", "transposed", "sparse")
VECTOR_LAYOUTS: tuple[Layout, ...] = ("contiguous", "offset", "sparse")
ORDINALS = ("first", "second", "third", "fourth", "fifth")


@dataclass(frozen=True, kw_only=True)
class ShapedCase(Case):
    """One input of an op with the output's shape; `case_class` adds the op's options."""

    sizes = ("shape",)

    shape: Shape
    others: tuple[Layout, ...] = described("layout", ())
    """The layout of each argument after the first; empty: all contiguous."""
    further: ClassVar[tuple[str, ...]] = ()
    """The arguments after the first."""

    @property
    def head(self) -> list[str]:
        """`8192x4096-bfloat16`: the shape and the dtype."""
        return ["x".join(map(str, self.shape)), self.dtype]

    @property
    def layouts(self) -> dict[str, Layout]:
        """The layouts of the arguments after the first."""
        others = self.others or CONTIGUOUS * len(self.further)
        return dict(zip(self.further, others, strict=True))

    @property
    def measures(self) -> dict[str, spec.Fact]:
        """The numbers of rows, elements and dimensions, and the width."""
        return {
            "the number of rows": math.prod(self.shape[:-1]),
            "the number of elements": math.prod(self.shape),
            "d": self.shape[-1],
            "the number of dimensions": len(self.shape),
        }


S = TypeVar("S", bound=ShapedCase)


def case_class(further: tuple[str, ...], options: Factors) -> type[ShapedCase]:
    """Return the class of an op's cases, with a field for each option.

    Args:
        further: The arguments after the first.
        options: The values of each option, the default first.
    """
    fields = [(name, Any, described("option", values[0])) for name, values in options.items()]
    return dataclasses.make_dataclass(
        "OptionsCase", fields, bases=(ShapedCase,), namespace={"further": further}, frozen=True,
        kw_only=True,
    )  # fmt: skip


def pairs(case: type[S], rows: int, options: Factors) -> PairTable[S]:
    """Return the table of an op's options.

    Args:
        case: The class of the cases.
        rows: How many arguments after the first have the output's shape.
        options: The values of each option, the default first.
    """
    layouts = {f"layout of {name}": ROW_LAYOUTS if index < rows else VECTOR_LAYOUTS
               for index, name in enumerate(case.further)}  # fmt: skip
    factors: Factors = {
        "shape": ((10, 2, 4, 8), (3, 2, 5, 22), (7, 130), (37, 6)),
        "dtype": DTYPES,
        **options,
        "layout": (
            "contiguous", "strided", "offset", "transposed", "reversed", "sparse", "expanded"
        ),
        "upstream": ("contiguous", "strided", "transposed", "expanded", "reversed"),
        **layouts,
    }  # fmt: skip
    defaults = {name: values[:1] for name, values in options.items()}
    contiguous = dict.fromkeys(("layout", *layouts), CONTIGUOUS)
    subsets: list[Factors] = [{"dtype": DTYPES[1:]}, contiguous, *([defaults] if defaults else [])]

    def case_of(row: spec.Row) -> S:
        fields = {name: value for name, value in row.items() if name not in layouts}
        return case(**fields, others=tuple(row[name] for name in layouts))

    return PairTable(factors, case_of, subsets=subsets)


def dimensions(shape: Shape, features: Axis) -> tuple[Axis, ...]:
    """Name the dimensions of a tensor of the output's shape."""
    count = len(shape) - 1
    names = ["row"] if count == 1 else [f"{ordinal} index" for ordinal in ORDINALS[:count]]
    return (*map(Axis, names), features)


def smoke(
    case: type[S], table: PairTable[S], special: Iterable[S], least: Shape = (1, 2)
) -> Iterator[S]:
    """Yield the smoke cases, with the op's special values and a least shape among them."""
    yield case(shape=(10, 2, 4, 8))
    yield from map(table.case_of, rows_of(table))
    for shape in (least, (1, 1, 1, 2), (0, 2, 3, 8), (3, 2, 0), (3, 2, 1, 5, 6)):
        yield case(shape=shape)
    yield case(shape=(3, 2050))  # wider than any tile
    yield case(shape=(256, 6))  # the last block of rows is full, too
    yield from special
    # bfloat16 has a larger range than float16
    yield case(shape=(5, 2, 18), values="huge", upstream_values="huge", dtype="bfloat16")
    yield case(shape=(3, 2, 16), layout="far", dtype="bfloat16")
    yield case(shape=(3, 2, 16), upstream="far", dtype="bfloat16")


def twin(case: ShapedCase) -> ShapedCase:
    """Return the reduced case: divide the width by a power of two, and cut the rows."""
    rows, *between, width = case.shape
    while width > WIDEST_TWIN:
        width //= 2
    if rows > 64:
        rows = 2 + rows // 8192 if between else 32 + rows // 512
    return dataclasses.replace(case, shape=(rows, *between, width), twin=True)


def shaped(
    *,
    name: str,
    interface: type,
    reference: spec.Reference,
    rows: tuple[str, ...],
    flops: tuple[int, int],
    vectors: tuple[str, ...] = (),
    options: Factors | None = None,
    board: tuple[Shape, ...] = BOARD,
    values: tuple[Values, ...] = ("zeros", "subnormal", "huge"),
    slack: Mapping[str, float] = spec.SLACK,
    order: int = 1000,
) -> spec.Op[ShapedCase]:
    """Return the op.

    Args:
        name: The name of the op's file, without `.py`.
        interface: The `typing.Protocol` of solutions.
        reference: The op in plain torch.
        rows: The arguments of the output's shape, `[..., d]`.
        flops: The operations for each element of the output, forward and backward.
        vectors: The arguments of shape `[d]`.
        options: The values of each option in smoke cases; the first is the default.
        board: The shapes of the board.
        values: The first argument's special values for which results stay in the dtype's range.
        slack: The largest permitted ratio of a solution's error to eager's error, by dtype.
        order: The op's display order.

    Raises:
        ValueError: `rows` and `vectors` together do not name the interface's tensors; or one is a
            string, such as ("gate"), which lacks a comma.
    """
    parameters = [*inspect.signature(interface.__call__).parameters.values()][1:]
    tensors = [each.name for each in parameters if each.kind is not each.KEYWORD_ONLY]
    if {*rows, *vectors} != {*tensors}:
        raise ValueError(f"rows and vectors name {[*rows, *vectors]}, the interface {tensors}")
    arguments, options = (*rows, *vectors), options or {}
    make = case_class(arguments[1:], options)
    table = pairs(make, len(rows) - 1, options)

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
        moved = inputs + elements + inputs * (direction == "backward")
        return spec.Work(moved * ITEMSIZE[case.dtype], flops[direction == "backward"] * elements)

    def axes(case: ShapedCase, _: Mapping[str, Any]) -> spec.Axes:
        named = dict.fromkeys(("output", *rows), dimensions(case.shape, Axis("feature")))
        return {**named, **dict.fromkeys(vectors, (Axis("feature"),))}

    def special() -> Iterator[ShapedCase]:
        for dtype in DTYPES[1:]:
            yield make(shape=(5, 3000), dtype=dtype)  # exposes low-precision sums
        if vectors:
            # exposes a sum over the rows that is rounded after each block
            yield make(shape=(2100, 8), dtype="bfloat16")
        # all shapes differ, so that no case gets another case's result from a cache keyed by shape
        widths: dict[Values, int] = {"zeros": 12, "subnormal": 14, "huge": 16}
        for each, d in widths.items():
            if each in values:
                yield make(shape=(5, 2, d), values=each, dtype="float16")
            yield make(shape=(6, 2, d), upstream_values=each, dtype="float16")

    def cases(tier: Tier) -> Iterator[ShapedCase]:
        if tier == "smoke":
            # of an op of one argument, the table of pairs repeats a case
            yield from dict.fromkeys(smoke(make, table, special()))
        elif tier == "matrix":
            for dtype in DTYPES:
                for shape in itertools.product((1, 63, 1000, 4096), (2, 66, 128, 1000, 2048)):
                    yield make(shape=shape, dtype=dtype)
        elif tier == "board":
            timed = [make(shape=shape, dtype="bfloat16") for shape in board]
            timed.append(make(shape=board[0], dtype="float16"))
            yield from dict.fromkeys([make(shape=(10, 2, 4, 8), ranked_by="host"), *timed])
        else:
            yield from (make(shape=(count, 4096), dtype="bfloat16") for count in PLOTTED)

    return spec.Op(
        name=name,
        order=order,
        interface=interface,
        reference=reference,
        differentiable=arguments,
        cases=cases,
        twin=twin,
        draw=draw,
        work=work,
        workspace=lambda case: 8 * 4 * math.prod(case.shape),  # at most eight float32 tensors
        split=spec.Split(0, dict.fromkeys(rows, 0)),
        axes=axes,
        slack=slack,
        table=table,
        large=make(shape=(2**20 + 64, 2048), dtype="bfloat16"),
    )
