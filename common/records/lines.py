"""The types of lines in a run's file: start, rows, counts and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from common import stats
from common.errors import Note
from common.spec import ByClock, Direction, Tier
from common.verdicts import FINE

# --- common parts of lines ------------------------------------------------------------------------

SCHEMA: Literal[2] = 2
STATES = {"gpu": "slow_probes", "host": "slow_host_probes"}
"""By clock, the name in a row's `device_state` of the number of rounds of eager and the limits
whose probe stayed slow, by other work on the machine; see `measure/baseline.py`. Earlier records
count both clocks in `slow_probes`."""


class Estimate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A time in microseconds, a speed or a share, with its 95 % interval.

    In the file it is `[10.2, 10.1, 10.4, [9.9, 10.7]]`: a median of samples has their quartiles.
    """

    value: float
    low: float
    high: float
    quartiles: tuple[float, float] | None = None
    """The first and the third quartile; None in earlier records."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """`low` and `high`; None for a value without an interval, such as a loop's in one run."""
        return (self.low, self.high) if self.low < self.high else None

    @classmethod
    def of(cls, samples: Sequence[float]) -> Estimate:
        """Return the median of samples in microseconds, all else to the nanosecond."""
        low, high = stats.interval(samples)
        first, third = np.percentile(samples, (25, 75)).tolist()
        quartiles = round(first, 3), round(third, 3)
        return cls(stats.median(samples), round(low, 3), round(high, 3), quartiles)


class Line(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="kind", omit_defaults=True
):
    """One line of a run's file; `run` is the run's id. Fields of earlier records are ignored."""

    schema: Literal[2]
    run: str


class Selection(
    msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True
):
    """The options that select a run's ops and solutions; None selects all."""

    op: str | None = None
    only: str | None = None
    tier: Tier = "board"


# --- a run and its rows ---------------------------------------------------------------------------


class Run(Line, frozen=True, kw_only=True, tag="run"):
    """One run of `bench`, which several invocations may continue after interrupts."""

    device: Literal["cpu", "cuda"]
    device_name: str
    versions: dict[str, str]
    machine: dict[str, str] = {}
    """CUDA's version, the driver, the GPU's power limit and the CPU; empty in earlier records."""
    absent: dict[str, str]
    """The absent peers, with the reasons."""
    selection: Selection = Selection()
    cases: dict[str, list[str]] = {}
    """The names of all cases of the tier, by op; empty in earlier records."""


class OfCase(Line, frozen=True, kw_only=True):
    """A line on one direction of one case of a solution."""

    solution: str
    peer: bool = False
    op: str
    case: str
    params: dict[str, Any]
    """The fields of the case, by which plots select rows; see `Case.params`."""
    track: str
    ranked_by: ByClock
    direction: Direction
    bytes: int
    """The minimum bytes of any solution, for this direction and the directions before it."""
    flops: int
    sources: str
    """Digest of the solution with its helpers."""
    harness: str
    """Digest of the code that grades and times."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The op, case, direction and solution: unique among the latest rows of a tier."""
        return self.op, self.case, self.direction, self.solution


class Record(OfCase, frozen=True, kw_only=True, tag="row"):
    """The verdict and the times, on the device of the folder."""

    twin: bool = False
    modelled: str = ""
    """The GPU for which a model gave the times; empty in a record, whose times are measured."""
    verdict: str
    reason: str = ""
    error: float | None = None
    gpu: dict[str, Estimate] = msgspec.field(default_factory=dict)
    """GPU times of `solution`, `eager` and `copy`, taken in turn, of forward or of forward with
    backward. Some rows have `dense` products and the replay of forward's CUDA `graph`; earlier
    records, `backward` alone.
    """
    host: dict[str, Estimate] = msgspec.field(default_factory=dict)
    """Host times of `solution` and `eager`; in earlier records also `no_grad`."""
    sustained: dict[str, float] = {}
    """Microseconds of a call in a loop of half a second: `solution`, `eager` and, where arithmetic
    binds, `dense`. Only cases where arithmetic binds and cases that rank by host time have them."""
    clock: int = 1
    """The version of the clock; see `measure/timing.py`."""
    device_state: dict[str, Any] = {}
    """The slow probes, by the names of STATES; earlier records have further readings."""
    notes: tuple[Note, ...] = ()
    """The notes of grading and of timing."""
    tier: Tier = "board"
    """`board` is ranked, `plot` is drawn."""
    node: str = ""
    """The host's name; empty in earlier records."""
    device: str = ""
    """The GPU's UUID; `cpu` without a GPU."""

    def __post_init__(self) -> None:
        """Refuse a row that the board cannot show; written without a loop for a million rows.

        Raises:
            ValueError: A time that ranks or limits the row is missing.
        """
        gpu, host = self.gpu, self.host
        if (gpu and not ("solution" in gpu and "eager" in gpu)) or (
            host and not ("solution" in host and "eager" in host)
        ):
            raise ValueError("the time of the solution or of eager is missing")
        if gpu and ("copy" not in gpu or (self.ranked_by == "host" and not host)):
            raise ValueError("the time of the copy, or the host's that ranks it, is missing")

    @property
    def fine(self) -> bool:
        """Return whether the verdict is not a failure."""
        return self.verdict in FINE

    @property
    def disturbed(self) -> set[str]:
        """The clocks, `gpu` or `host`, by which a probe showed other work on the machine."""
        return {clock for clock, name in STATES.items() if self.device_state.get(name)}


# --- counted work ---------------------------------------------------------------------------------


class Step(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="step", omit_defaults=True
):
    """One operator or one launch; amounts are in bytes unless their docstring says otherwise."""


class Operator(Step, frozen=True, kw_only=True, tag="operator"):
    """One of torch's operators."""

    operator: str
    read: int
    """Bytes of the inputs, counted once for each element in memory."""
    written: int
    flops: int = 0
    """FLOPs of matrix products; 0 for other operators."""
    dtype: str = ""


class Launch(Step, frozen=True, kw_only=True, tag="launch"):
    """A launch of a Triton kernel; the sums over all programs are estimated from a sample."""

    kernel: str
    grid: tuple[int, int, int]
    """Programs along each axis."""
    fetched: int
    """Bytes of the sectors of 32 bytes that programs read, counted once per program."""
    read: int
    """The same, but of each tensor at most its memory."""
    written: int
    """Bytes of the sectors that programs write, of each tensor at most its memory."""
    flops: dict[str, int]
    """FLOPs of `tl.dot`, by the operands' type: `bf16`, `fp16`, `tf32`, `fp32` and so on."""
    rounds: float
    """Consecutive waits for memory of the average program."""
    uncertain: float = 0.0
    """The share of the bytes or FLOPs that the sample leaves uncertain, two standard errors; 0 for
    a sample that has settled."""

    @property
    def programs(self) -> int:
        """The number of programs."""
        x, y, z = self.grid
        return x * y * z


Steps = list[Operator | Launch]


class Counted(OfCase, frozen=True, kw_only=True, tag="counted"):
    """The counted work of a board's case at its true shape."""

    row: str
    """The name of the case in this run's rows: the twin's name without a GPU."""
    steps: Steps
    """The steps of forward, or of forward with backward."""

    @property
    def launches(self) -> list[Launch]:
        """The launches of Triton kernels."""
        return [step for step in self.steps if isinstance(step, Launch)]

    @property
    def operators(self) -> list[Operator]:
        """The operators of torch."""
        return [step for step in self.steps if isinstance(step, Operator)]

    @property
    def moved(self) -> int:
        """The bytes of all steps."""
        return sum(step.read + step.written for step in self.steps)

    @property
    def read_again(self) -> float:
        """How often kernels read a byte, counted once per program; 0 without a kernel."""
        read = sum(launch.read for launch in self.launches)
        return sum(launch.fetched for launch in self.launches) / max(read, 1)

    @property
    def multiplied(self) -> int:
        """The FLOPs of matrix products."""
        of_kernels = sum(sum(launch.flops.values()) for launch in self.launches)
        return of_kernels + sum(operator.flops for operator in self.operators)

    @property
    def is_rough(self) -> bool:
        """Whether a sample leaves the work uncertain, or it is less than a right call's."""
        return any(launch.uncertain for launch in self.launches) or self.moved < self.bytes


class End(Line, frozen=True, kw_only=True, tag="end"):
    """The last line of a run that finished."""

    seconds: float | None = None
    """The wall time of the run since it began or was last continued."""


Anything = Run | Record | Counted | End
