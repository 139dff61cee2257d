"""Operations, their cases and the minimum work of a case, as frozen dataclasses."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar

if TYPE_CHECKING:
    import torch

Direction = Literal["forward", "backward"]
ByClock = Literal["gpu", "host"]
"""A kind of time: the GPU's time, or the host's time until the call returns."""
Tier = Literal["smoke", "matrix", "board", "plot"]
Layout = Literal[
    "contiguous", "strided", "offset", "transposed", "reversed", "sparse", "expanded", "far"
]
"""A tensor's layout in memory; `ops/_draw.py` describes each layout."""
Values = Literal["normal", "zeros", "subnormal", "huge", "infinite", "apart"]
"""Special values among an input's normal ones:

* zeros: every other slice of the first dimension is zero
* subnormal: most values lie below the dtype's smallest normal number
* huge: one element is multiplied by 10,000 or more
* infinite: in weights that no token selects, so that no infinity reaches the output
* apart: each slice of the first dimension is 100 times as large as the slice before
"""
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
TIERS: tuple[Tier, ...] = ("smoke", "matrix", "board", "plot")
TIMED: tuple[Tier, ...] = ("board", "plot")
"""The timed tiers: cases of `board` are ranked, sweeps of `plot` are only plotted."""

# The error of correct kernels is 0.6 to 1.0 times eager's in half precision, and at most 1.2 times
# in float32; with float16 accumulation at K = 1024 it is 2 to 4 times eager's.
SLACK: Mapping[str, float] = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
"""The largest permitted ratio of a solution's error to eager's error, by dtype."""

ITEMSIZE: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of an element, by dtype."""
DTYPES = (*ITEMSIZE,)
ORDINALS = ("first", "second", "third", "fourth", "fifth")
WIDEST_TWIN = 512
"""The largest width of a reduced case; the whole board takes one minute in the interpreter at 512,
and two minutes at 1024."""

Reference = Callable[..., Any]
"""An op in plain torch, with the signature of its solutions: it returns the output, or a tuple."""
Shapes = Mapping[str, tuple[int, ...]]
"""The shape of each output by its name: `output`, or of several `output_q` and `output_k`."""
Product = tuple[int, int, int]
"""m, k and n of a dense product `[m, k] @ [k, n]`."""
Param = bool | int | float | str | list[int]
"""One value of `Case.params`, in JSON's types."""
Fact = bool | int | float | str
"""A property of a case that tells failing cases from passing ones, such as its number of heads."""


@dataclass(frozen=True)
class Work:
    """The minimum work of any solution of a case."""

    bytes: int
    """Bytes moved if each input is read once and each output is written once."""
    flops: int
    """Floating-point operations."""
    products: tuple[Product, ...] = ()
    """The dense products that account for most of the operations, if any."""


Role = Literal["option", "layout", "data"]
"""What a field of a case describes: an option of the call, a layout in memory, or values. Names and
facts list the fields in this order."""


def described(
    role: Role,
    usual: Any,
    word: str | Mapping[Any, str] | None = None,
    fact: str | None = None,
    shown: Mapping[Any, Fact] | None = None,
) -> Any:
    """Return a case's field, with what names and messages say of it.

    For example, `percent: int = described("option", 50, "{0.percent}%", "the percentage")`.

    Args:
        role: What the field describes.
        usual: The default.
        word: What a case's name says of another value than the usual one: a text, formatted with
            the case, or a word for each value; "" for nothing. By default the field's name for
            True, `name=value` otherwise, without the name's suffix `_layout`.
        fact: The name of the property in messages, by default the field's name; of a layout, the
            argument.
        shown: What messages say in place of a value.
    """
    metadata = {"role": role, "word": word, "fact": fact, "shown": shown or {}}
    return field(default=usual, metadata=metadata)


def words_of(field: dataclasses.Field[Any]) -> str | Mapping[Any, str]:
    """Return what names say of a field: a word for each value, or a text to format with a case."""
    word, name, usual = field.metadata["word"], field.name, field.default
    if isinstance(usual, bool) and not isinstance(word, Mapping):
        return {not usual: word or (f"{name}=False" if usual else name)}
    return f"{name.removesuffix('_layout')}={{0.{name}}}" if word is None else word


@dataclass(frozen=True, kw_only=True)
class Case:
    """The description of one call; an op adds fields: the sizes, without a default, and others."""

    lists: ClassVar[tuple[str, ...]] = ()
    """The fields that hold a list with the size of each sequence."""
    together: ClassVar[tuple[str, ...]] = ()
    """The fields of which a plainer case has all at their defaults, or none."""

    dtype: str = "float32"
    ranked_by: ByClock = "gpu"
    """The kind of time by which the board ranks the case."""
    twin: bool = False
    """Whether this is a board case that was reduced for Triton's interpreter."""
    layout: Layout = described("layout", "contiguous", "{0.layout}")
    """The layout of the first argument."""
    upstream: Layout = described("layout", "contiguous")
    """The layout of the upstream gradient."""
    values: Values = described("layout", "normal", "{0.values}")
    """Special values in the first argument, or in weights."""
    upstream_values: Values = described("layout", "normal", "upstream={0.upstream_values}")
    """Special values in the upstream gradient, such as zeros for tokens without a loss."""

    if TYPE_CHECKING:

        @property
        def shape(self) -> tuple[int, ...]:
            """The shape of the first argument: a field or a property of each op's cases."""

    @property
    def head(self) -> list[str]:
        """The first parts of the name: the sizes, the dtype and what every name states."""
        return ["x".join(map(str, self.shape)), self.dtype]

    @property
    def measures(self) -> Mapping[str, Fact]:
        """The sizes by their names in messages."""
        raise NotImplementedError

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """The layouts of the arguments after the first, from the fields like `mask_layout`."""
        return {
            each.metadata["fact"] or each.name.removesuffix("_layout"): getattr(self, each.name)
            for each in self.described("layout")
            if each.name.endswith("_layout")
        }

    @property
    def group(self) -> str:
        """The group within which random choices are spread evenly; see `Draws.dealt`."""
        return self.dtype

    def changed(self, dice: random.Random) -> Self:
        """Return a case with inputs of the same shapes and other values.

        Fields that determine an integer tensor's values, such as lengths, are drawn anew from
        `dice`.
        """
        return self

    @cached_property
    def name(self) -> str:
        """The key of the case in records and test ids, unique among the op's cases."""
        words = map(self._word, self.described("option", "layout", "data"))
        return "-".join([*self.head, *filter(None, words), *["twin"] * self.twin])

    @classmethod
    def of_head(cls, words: list[str]) -> Self:
        """Return the case whose head begins the words of a name, and take the head from them.

        The inverse of `head`, with options at their defaults; see `ops/_names.py`.

        Raises:
            ValueError: The words begin with no head.
        """
        raise ValueError(f"{cls.__name__} reads no names: define `of_head`")

    def settled(self) -> Self:
        """Return the case that was read from a name, with what the name leaves open.

        Raises:
            ValueError: There is no such call.
        """
        return self

    def described(self, *roles: Role) -> Iterator[dataclasses.Field[Any]]:
        """Yield the fields of these roles, made by `described`."""
        fields = dataclasses.fields(self)
        return (each for role in roles for each in fields if each.metadata.get("role") == role)

    def _word(self, field: dataclasses.Field[Any]) -> str:
        """Return what the name says of a field, "" if the field has its usual value."""
        value, words = getattr(self, field.name), words_of(field)
        if value == field.default:
            return ""
        return words.format(self) if isinstance(words, str) else words.get(value, "")

    def facts(self, role: Role) -> dict[str, Fact]:
        """Return the values of the fields of a role, by their names in messages."""
        facts = {}
        for each in self.described(role):
            value = getattr(self, each.name)
            facts[each.metadata["fact"] or each.name] = each.metadata["shown"].get(value, value)
        return facts

    @property
    def params(self) -> dict[str, Param]:
        """The case as JSON data: its dtype and sizes, and each non-default option.

        `ranked_by` and `twin` are left out: they describe the case's use, and a record has
        separate fields for them. For example
        `{"dtype": "bfloat16", "s": 8192, "b": 2, "h": 32, "d": 128, "d2": 64, "angles": "model"}`.
        """
        return {
            each.name: list(value) if isinstance(value, tuple) else value
            for each in dataclasses.fields(self)
            if (value := getattr(self, each.name)) != each.default or each.name == "dtype"
            if each.name not in ("ranked_by", "twin")
        }

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions in which the case is graded.

        A case with infinite weights is graded only forward, because eager's gradient is NaN.
        """
        return ("forward",) if self.values == "infinite" else DIRECTIONS

    @property
    def by_slice(self) -> bool:
        """Whether the error is computed for each slice along the first dimension separately."""
        return not {"huge", "apart"}.isdisjoint((self.values, self.upstream_values))

    @property
    def far_bytes(self) -> int:
        """The minimum bytes that a far view spans (4 GiB for a half type), 0 for other layouts."""
        return 2**31 * ITEMSIZE[self.dtype] if "far" in (self.layout, self.upstream) else 0


C = TypeVar("C", bound=Case)


def with_layouts(
    base: type[C], layouts: Iterable[str], options: Any = (), **constants: Any
) -> Callable[..., C]:
    """Return a class of cases with a field for each named layout and, before them, the options."""
    fields = [*options, *((name, Layout, described("layout", "contiguous")) for name in layouts)]
    return dataclasses.make_dataclass(
        base.__name__, fields, bases=(base,), namespace={"together": (*layouts,), **constants},
        frozen=True, kw_only=True,
    )  # fmt: skip


@dataclass(frozen=True)
class Axis:
    """The names of one dimension of a result and of its parts, for messages.

    For example `Axis("feature", {"the first half of the rotated features": range(8)})`.
    """

    name: str
    """The name of one index, in the singular."""
    parts: Mapping[str, Collection[int]] = field(default_factory=dict)
    """The indices of each named part."""

    @property
    def plural(self) -> str:
        """The plural of the name."""
        for singular, plural in (("ch", "ches"), ("ex", "ices")):
            if self.name.endswith(singular):
                return self.name.removesuffix(singular) + plural
        return f"{self.name}s"


Axes = Mapping[str, tuple[Axis, ...]]
"""The dimensions of the output and of each gradient, by the name of the result."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Op(Generic[C]):
    """An operation and all that the harness needs to grade it; see any file of `common/ops`."""

    name: str
    interface: type
    """A `typing.Protocol`; the signature of its `__call__` is the contract of every solution."""
    reference: Reference
    """Plain torch: the oracle in float64, the eager baseline in the case's dtype."""
    differentiable: tuple[str, ...]
    """The arguments that take a gradient."""
    cases: Callable[[Tier], Iterator[C]]
    twin: Callable[[C], C]
    """Reduce a board case to a few hundred programs."""
    draw: Callable[[C, torch.Generator], dict[str, Any]]
    """Draw the arguments of one call, on the generator's device and in the case's layouts."""
    work: Callable[[C, Direction], Work]
    workspace: Callable[[C], int]
    """Return the maximum bytes that eager's forward and backward need beyond the inputs."""
    split: Mapping[str, int]
    """The dimension along which a call splits into independent calls, such as a layer's tokens: of
    each output, and of each split argument. The oracle computes a few slices at a time."""
    axes: Callable[[C, Mapping[str, Any]], Axes]
    """Name the dimensions of the results of one call, given its arguments."""
    tracks: Mapping[str, str] = field(default_factory=lambda: {"standard": ""})
    """The tracks, with what their cases are; the first is the main track."""
    track_of: Callable[[C], str] = lambda case: "standard"
    """Return the track to which a case belongs."""
    outputs: Callable[[C], Shapes] = lambda case: {"output": case.shape}
    """Return the shapes of the outputs in their order; their dtype is the case's."""
    slack: Mapping[str, float] = field(default_factory=lambda: SLACK)
    table: Any = None
    """The options, a `PairTable` of `ops/_pairs.py`: each pair of values has a smoke case."""
    large: C | None = None
    """A case whose dense tensors have more than 2^31 elements. A GPU with the memory grades it with
    the matrix; without a GPU, a sample of programs runs; see `grading/compiling.py`."""
    order: int = 1000
    """The op's position on boards and in the README; equal numbers are ordered by name."""
    permutable: tuple[str, ...] = ()
    """Further arguments whose slices along the first dimension may be permuted: the call is still
    of the same case."""

    def tier(self, tier: Tier, device: str) -> Iterator[C]:
        """Return the distinct cases of a tier; without a GPU, the twins of the board's cases."""
        twins = tier == "board" and device != "cuda"
        cases = map(self.twin, self.cases(tier)) if twins else self.cases(tier)
        return iter({case.name: case for case in cases}.values())

    def elements(self, case: C) -> int:
        """Return the number of elements of the case's outputs."""
        return sum(math.prod(shape) for shape in self.outputs(case).values())

    def of_params(self, params: Mapping[str, Any]) -> C:
        """Return the case of these parameters; see `Case.params`."""
        fields: Mapping[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in params.items()
        }
        return type(next(self.cases("board")))(**fields)

    def timed_work(self, case: C, direction: Direction) -> Work:
        """Return the minimum work of the timed call: forward, or forward and backward."""
        works = [self.work(case, part) for part in DIRECTIONS[: DIRECTIONS.index(direction) + 1]]
        return Work(
            sum(work.bytes for work in works),
            sum(work.flops for work in works),
            tuple(product for work in works for product in work.products),
        )


# --- the names of results -------------------------------------------------------------------------

OUTPUT, UPSTREAM = "output", "upstream"
"""The name of the output among the results, and of its gradient among the inputs. Several outputs
are `output_q` and `output_k`, for example. A gradient is named after its argument."""


def is_output(name: str) -> bool:
    """Return whether a result is an output, and no gradient."""
    return name.partition("_")[0] == OUTPUT


def upstream_of(output: str) -> str:
    """Return the name of an output's upstream gradient: `upstream_q` of `output_q`."""
    return UPSTREAM + output.removeprefix(OUTPUT)
