"""Operations, their cases and the work that each case needs, as plain frozen data."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar

if TYPE_CHECKING:
    import torch

Direction = Literal["forward", "backward"]
ByClock = Literal["gpu", "host"]
"""A kind of time: the GPU's, or the host's until the call returns."""
Tier = Literal["smoke", "matrix", "board", "plot"]
Layout = Literal[
    "contiguous", "strided", "offset", "transposed", "reversed", "sparse", "expanded", "far"
]
"""A tensor's place in memory; `ops/_views.py` says more of each."""
Values = Literal["normal", "zeros", "subnormal", "huge", "infinite"]
"""Special values among an input's normal ones:

* zeros: every other slice of the first dimension is zero
* subnormal: most lie below the dtype's smallest normal number
* huge: one element is 10,000 times as large or more
* infinite: in weights that no token chooses, so that none of them reaches the output
"""
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
TIERS: tuple[Tier, ...] = ("smoke", "matrix", "board", "plot")
TIMED: tuple[Tier, ...] = ("board", "plot")
"""The board's cases are ranked; the sweeps of `plot` are drawn and not ranked."""

# Honest half-precision kernels reach 0.6 to 1.0 times eager's own error, honest float32 ones at
# most 1.2; float16 accumulation at K = 1024 reaches 2 to 4.
SLACK: Mapping[str, float] = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
"""How many times eager's own error a solution may err, by dtype."""

ITEMSIZE: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of an element, by dtype."""

Reference = Callable[..., "torch.Tensor"]
"""An op in plain torch, with the signature of its solutions."""
Product = tuple[int, int, int]
"""m, k and n of a dense product `[m, k] @ [k, n]`."""
Param = bool | int | float | str | list[int]
"""One value of `Case.params`, as JSON has it."""


@dataclass(frozen=True)
class Work:
    """The least work that any solution of a case must do."""

    bytes: int
    """Bytes moved, with each input read once and each output written once."""
    flops: int
    """Floating-point operations."""
    products: tuple[Product, ...] = ()
    """The dense products that most of the operations are spent on, if there are any."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One input of an op; each op extends it with the fields that its inputs are drawn from."""

    sizes: ClassVar[tuple[str, ...]] = ()
    """The fields that hold the input's sizes."""
    lists: ClassVar[tuple[str, ...]] = ()
    """The fields that hold a size for each of several sequences."""
    joined: ClassVar[tuple[str, ...]] = ()
    """The fields that take their defaults only together."""

    dtype: str = "float32"
    ranked_by: ByClock = "gpu"
    """The time by which the board ranks the case."""
    twin: bool = False
    """A board case, cut down to what Triton's interpreter can run."""
    apart: bool = False
    """The slices along the first dimension differ in magnitude."""
    layout: Layout = "contiguous"
    """The place in memory of the first argument."""
    upstream: Layout = "contiguous"
    """The place in memory of the upstream gradient."""
    values: Values = "normal"
    """Special values in the first argument, or in weights."""
    upstream_values: Values = "normal"
    """Special values in the upstream gradient, such as zeros, of tokens that have no loss."""

    @property
    def name(self) -> str:
        """The key of the case in records and test ids, unique among the op's cases."""
        raise NotImplementedError

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions that the case asks for.

        Forward alone where weights are infinite: eager's own gradient is NaN there.
        """
        return ("forward",) if self.values == "infinite" else DIRECTIONS

    @property
    def sliced(self) -> bool:
        """Whether each slice along the first dimension is judged by itself, not all together."""
        return self.apart or "huge" in (self.values, self.upstream_values)

    @property
    def span(self) -> int:
        """The bytes that a far view spans, 0 in other cases: 4 GiB and more for a half type."""
        return 2**31 * ITEMSIZE[self.dtype] if "far" in (self.layout, self.upstream) else 0

    @property
    def params(self) -> dict[str, Param]:
        """The case as JSON data: its dtype and sizes, and each option that is not the default.

        `track`, `ranked_by` and `twin` are left out, since they say how a case is used and a record
        states them by themselves. For example
        `{"dtype": "bfloat16", "s": 8192, "b": 2, "h": 32, "d": 128, "d2": 64, "angles": "model"}`.
        """
        always = ("dtype", *self.sizes)
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if name in always or (name not in _USES and value != defaults[name])
        }

    @property
    def unusual(self) -> list[str]:
        """The parts of the name that say the layouts and values, where they are not the default."""
        parts: list[str] = [self.layout] * (self.layout != "contiguous")
        parts += [f"upstream={self.upstream}"] * (self.upstream != "contiguous")
        parts += [self.values] * (self.values != "normal")
        return parts + [f"upstream={self.upstream_values}"] * (self.upstream_values != "normal")

    @property
    def kind(self) -> str:
        """The group within which choices are dealt evenly, as most solutions answer some alone."""
        return self.dtype

    def varied(self, dice: random.Random) -> Self:
        """Return a case with inputs of the same shapes, of which each may have other values.

        What the fields state of an integer tensor, such as lengths, is drawn anew by the dice.
        """
        return self

    def track_of(self, direction: Direction) -> str:
        """Return the table of the leaderboard in which this direction of the case counts."""
        raise NotImplementedError


_USES = ("track", "ranked_by", "twin")
C = TypeVar("C", bound=Case)


@dataclass(frozen=True)
class Split:
    """The dimension along which one call is many independent ones, such as a layer's tokens.

    A slice of the output follows from the same slice of these arguments, and from all of the rest.
    """

    output: int
    """The dimension of the output."""
    arguments: Mapping[str, int]
    """The dimension of each argument that is split."""


@dataclass(frozen=True)
class Axis:
    """One dimension of a result in the op's own words.

    For example `Axis("feature", {"the first half of what is rotated": range(8)})`.
    """

    name: str
    """Of one of its indices, in the singular."""
    parts: Mapping[str, Collection[int]] = field(default_factory=dict)
    """The parts of it that have a name, each with its indices."""

    @property
    def plural(self) -> str:
        """Return the name of several indices."""
        for singular, plural in (("ch", "ches"), ("ex", "ices")):
            if self.name.endswith(singular):
                return self.name.removesuffix(singular) + plural
        return f"{self.name}s"


Factors = Mapping[str, Sequence[Any]]
"""The values of each factor: `{"dtype": ("float32", "float16"), "interleaved": (False, True)}`."""
Row = dict[str, Any]
"""One value of each factor, or of some."""


@dataclass(frozen=True)
class Exclusion:
    """Values of two factors that cannot meet, and the reason.

    For example `Exclusion("an odd length has no two chunks", length=(7,), cp=(2, 3))`.
    """

    reason: str
    values: Mapping[str, Collection[Any]]

    def __init__(self, reason: str, **values: Collection[Any]) -> None:
        """State the values of exactly two factors."""
        assert len(values) == 2, "an exclusion is one of pairs"
        object.__setattr__(self, "reason", reason)
        object.__setattr__(self, "values", values)

    def holds_for(self, row: Row) -> bool:
        """Return whether the row has both factors, each with one of the values."""
        return all(name in row and row[name] in values for name, values in self.values.items())


@dataclass(frozen=True)
class Table(Generic[C]):
    """Options of an op, each pair of whose values meets in a smoke case; see `ops/_pairs.py`."""

    factors: Factors
    case_of: Callable[[Row], C]
    """Return the case that has these values."""
    exclusions: Sequence[Exclusion] = ()
    """The pairs that cannot be had."""
    subsets: Sequence[Factors] = ()
    """The values that many a solution answers alone; each pair of theirs meets there, too."""


Axes = Mapping[str, tuple[Axis, ...]]
"""The dimensions of the output and of each gradient, by the name of the result."""
Fact = bool | int | float | str
"""A property of a case that tells failing cases from passing ones, such as its number of heads."""


@dataclass(frozen=True, kw_only=True)
class Op(Generic[C]):
    """An operation and all that the harness needs to grade it; see any file of `common/ops`."""

    name: str
    interface: type
    """A `typing.Protocol`; the signature of its `__call__` is the contract of every solution."""
    reference: Reference
    """Plain torch: the oracle in float64, the eager baseline in the case's dtype."""
    differentiable: tuple[str, ...]
    """The arguments that take a gradient."""
    tracks: tuple[str, ...]
    """The main one first: the board gives a solution its place in it."""
    cases: Callable[[Tier], Iterator[C]]
    twin: Callable[[C], C]
    """Cut a board case down to a few hundred programs."""
    draw: Callable[[C, torch.Generator], dict[str, Any]]
    """Draw the arguments of one call on the generator's device; views are drawn as views."""
    output: Callable[[C], tuple[int, ...]]
    """Return the output's shape; its dtype is the case's."""
    work: Callable[[C, Direction], Work]
    workspace: Callable[[C], int]
    """Return the bytes that eager's forward with backward takes beyond its inputs, at most."""
    split: Split
    """The oracle takes a few slices at a time."""
    axes: Callable[[C, Mapping[str, Any]], Axes]
    """Name the dimensions of the results of one call, given its arguments."""
    facts: Callable[[C], Mapping[str, Fact]]
    """Return the sizes, options and layouts of a case by the names that the signature gives them;
    a size is an `int`. `upstream` is the layout of the upstream gradient."""
    slack: Mapping[str, float] = field(default_factory=lambda: SLACK)
    table: Table[C] | None = None
    layouts: Callable[[C], Mapping[str, Layout]] = lambda case: {}
    """Return the place in memory of arguments other than the first one that takes a gradient."""
    order: int = 1000
    """The place of the op on boards and in the README, by number and then by name."""
    movable: tuple[str, ...] = ()
    """Further arguments whose slices along the first dimension may change places, which gives a
    case of the same kind."""

    def board(self, device: str) -> Iterator[C]:
        """Yield the timed cases; without a GPU nothing is timed and each runs as its twin."""
        yield from self.cases("board") if device == "cuda" else map(self.twin, self.cases("board"))

    def tier(self, tier: Tier, device: str) -> Iterator[C]:
        """Yield the cases of a tier as the device runs them."""
        yield from self.board(device) if tier == "board" else self.cases(tier)

    def timed_work(self, case: C, direction: Direction) -> Work:
        """Return the least work of what is timed: forward, or forward with backward."""
        works = [self.work(case, each) for each in DIRECTIONS[: DIRECTIONS.index(direction) + 1]]
        return Work(
            sum(work.bytes for work in works),
            sum(work.flops for work in works),
            tuple(product for work in works for product in work.products),
        )
