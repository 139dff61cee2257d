"""What is graded, as plain frozen data: an operation, its cases and the work each must do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

if TYPE_CHECKING:
    import torch

Direction = Literal["forward", "backward"]
RankedBy = Literal["gpu", "host"]
Tier = Literal["smoke", "matrix", "board", "plot"]
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
TIERS: tuple[Tier, ...] = ("smoke", "matrix", "board", "plot")
TIMED: tuple[Tier, ...] = ("board", "plot")
"""The board's cases are ranked; those of `plot` are the seeds' sweeps, drawn and not ranked."""

# How many times eager's own error a solution may err: honest half-precision kernels reach 0.6 to
# 1.0 of it, honest float32 ones at most 1.2, float16 accumulation at K = 1024 reaches 2 to 4.
SLACK: Mapping[str, float] = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}


Product = tuple[int, int, int]
"""m, k, n."""
Param = bool | int | float | str | list[int]
"""One value of `Case.params`, as JSON has it."""


@dataclass(frozen=True)
class Work:
    """The least that any solution must do: bytes moved, each input read and each output written
    once, and floating-point operations; `products` are the dense products `[m, k] @ [k, n]` that
    most of these are spent on, if they are."""

    bytes: int
    flops: int
    products: tuple[Product, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Case:
    """One input of an op. Each op extends it with the fields that its inputs are drawn from.

    `ranked_by` says which time ranks the case on the board; `twin` marks a board case that was cut
    down to what Triton's interpreter can run; `apart` says that the slices along the first
    dimension differ in magnitude, so that each is judged by itself.
    """

    sizes: ClassVar[tuple[str, ...]] = ()
    """The fields that hold the input's sizes."""

    dtype: str = "float32"
    ranked_by: RankedBy = "gpu"
    twin: bool = False
    apart: bool = False

    @property
    def params(self) -> dict[str, Param]:
        """The case as JSON data: its dtype and sizes, and each option that is not the default.

        `track`, `ranked_by` and `twin` are left out, since they say how a case is used and a record
        states them by themselves. For example
        `{"dtype": "bfloat16", "s": 8192, "b": 2, "h": 32, "d": 128, "d2": 64, "angles": "model"}`.
        """
        always = ("dtype", *self.sizes)
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        defaults = {each.name: each.default for each in dataclasses.fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if name in always or (name not in _USES and value != defaults[name])
        }

    @property
    def name(self) -> str:
        """Unique among the op's cases; what records and test ids are keyed by."""
        raise NotImplementedError

    def track_of(self, direction: Direction) -> str:
        """The table of the leaderboard in which this direction of the case counts."""
        raise NotImplementedError


_USES = ("track", "ranked_by", "twin")
C = TypeVar("C", bound=Case)


@dataclass(frozen=True)
class Op(Generic[C]):
    """An operation and all that the harness needs to grade it; see any file of `common/ops`."""

    name: str
    interface: type
    """A `typing.Protocol`; the signature of its `__call__` is the contract of every solution."""
    reference: Callable[..., torch.Tensor]
    """Plain torch. The oracle in float64; the eager baseline in the case's dtype."""
    differentiable: tuple[str, ...]
    """The arguments that take a gradient."""
    tracks: tuple[str, ...]
    cases: Callable[[Tier], Iterator[C]]
    twin: Callable[[C], C]
    """A board case cut down to a few hundred programs."""
    draw: Callable[[C, torch.Generator], dict[str, Any]]
    """The arguments of one call, on the generator's device; views are drawn as views."""
    work: Callable[[C, Direction], Work]
    slack: Mapping[str, float] = field(default_factory=lambda: SLACK)
    movable: tuple[str, ...] = ()
    """Further arguments whose elements may change places: what comes of it is a case like it."""

    room: int = 20
    """What grading a case takes of a GPU, in units of its least bytes: mostly float64, and what the
    reference keeps for backward; measured."""

    @property
    def changing(self) -> tuple[str, ...]:
        """The arguments that the harness changes between two calls of one shape."""
        return (*self.differentiable, *self.movable)

    def board(self, device: str) -> Iterator[C]:
        """The timed cases; without a GPU nothing is timed and each runs as its twin."""
        yield from self.cases("board") if device == "cuda" else map(self.twin, self.cases("board"))

    def timed_work(self, case: C, direction: Direction) -> Work:
        """Of forward, or of forward with backward, which is what is timed."""
        works = [self.work(case, each) for each in DIRECTIONS[: DIRECTIONS.index(direction) + 1]]
        return Work(
            sum(work.bytes for work in works),
            sum(work.flops for work in works),
            tuple(product for work in works for product in work.products),
        )

    def tier(self, tier: Tier, device: str) -> Iterator[C]:
        yield from self.board(device) if tier == "board" else self.cases(tier)
