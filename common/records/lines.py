"""The kinds of lines in a run's file: start, rows, counts, cases left out, history and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

import msgspec

from common import stats
from common.records import jsonl
from common.spec import ByClock, Direction, Tier
from common.verdicts import FINE

# --- what lines have in common --------------------------------------------------------------------

SCHEMA: Literal[2] = 2
POWER_CAP = "power cap"
SLOW_PROBES = "slow probes"


class Summary(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A median with its 95 % interval, in microseconds; `[10.2, 10.1, 10.4]` in the file."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Summary:
        """Return the summary of samples in microseconds, its bounds to the nanosecond."""
        low, high = stats.interval(samples)
        return cls(stats.median(samples), round(low, 3), round(high, 3))


Influences = dict[str, list[str]]
"""What touched a row's times but for the solution, by the clock that took them, `gpu` or `host`."""


class DeviceState(TypedDict, total=False):
    """The device while a case was timed: lowest and highest readings; see `measure/device.py`."""

    sm_mhz: list[int]
    memory_mhz: list[int]
    celsius: list[int]
    throttled: list[str]
    others: int
    slow_probes: int
    """Rounds of eager and the limits beside which a probe stayed slow; see `measure/baseline.py`.
    """
    slow_host_probes: int
    """The same by the host's clock; earlier records count both together."""
    elsewhere: str
    """The device of the case's first timed row in the run, where it is another than this row's."""


class Line(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    gc=False,
    tag_field="kind",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """One line of a run's file; `run` is the run's id."""

    schema: Literal[2]
    run: str


class Selection(
    msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True
):
    """The options that chose what a run measures; None where all were chosen."""

    op: str | None = None
    only: str | None = None
    tier: Tier = "board"


# --- a run and its rows ---------------------------------------------------------------------------


class Run(Line, frozen=True, kw_only=True, tag="run"):
    """One invocation of `bench`, or several of them where it was interrupted."""

    device: Literal["cpu", "cuda"]
    device_name: str
    versions: dict[str, str]
    absent: dict[str, str]
    """The peers that could not take part, each with the reason."""
    selection: Selection = Selection()
    peak: dict[str, Any] = msgspec.field(default_factory=dict)
    """The datasheet's rates of the device; where they are not known, `source: "measured"` alone."""
    memory_gib: int = 0
    """The most that the run may take of the GPU's memory, rounded; 0 without a GPU."""

    @property
    def whole(self) -> bool:
        """Return whether the run measured every solution of the ops that it measured."""
        return self.selection.only is None


class Record(Line, frozen=True, kw_only=True, tag="row"):
    """One direction of one case of one solution, on the device that the folder is named after."""

    solution: str
    peer: bool = False
    op: str
    case: str
    params: dict[str, Any]
    """The fields of the case, by which plots select; see `Case.params`."""
    track: str
    ranked_by: ByClock
    twin: bool = False
    direction: Direction
    verdict: str
    reason: str = ""
    error: float | None = None
    bytes: int
    flops: int
    sources: str
    """Digest of the solution with its helpers."""
    harness: str
    """Digest of the op and of everything that grades and times."""
    gpu: dict[str, Summary] = msgspec.field(default_factory=dict)
    """`solution`, `eager` and `copy`, taken in turn; of forward, or of forward with backward.
    Some rows have `dense` products, `backward` alone and the replay of a `graph` of forward.
    """
    host: dict[str, Summary] = msgspec.field(default_factory=dict)
    """`solution` and `eager`; a row of forward has it with `no_grad` too."""
    sustained: dict[str, float] = {}
    """Microseconds of a call in a loop of half a second: `solution`, `eager` and, where arithmetic
    binds, `dense`. Known there and in the cases that rank by host time."""
    clock: int = 1
    """The version of the clock; see `measure/timing.py`."""
    device_state: DeviceState = {}
    """Empty where NVML could not be asked."""
    peak_memory: int | None = None
    """Bytes that the calls take beyond inputs and results, at most; None where nothing was timed.
    """
    notes: tuple[str, ...] = ()
    """Lines on what decides nothing, such as a CUDA graph that does not follow its inputs."""
    tier: Tier = "board"
    """`board` is ranked, `plot` is drawn."""
    node: str = ""
    """The name of the host that the case was run on; empty in records before it was kept."""
    device: str = ""
    """The UUID of its GPU; `cpu` without a GPU."""

    def __post_init__(self) -> None:
        """Refuse a row that the board could not show; written out, since a million rows pass.

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
    def key(self) -> tuple[str, str, str, str]:
        """The op, case, direction and solution: unique among the latest rows of a tier."""
        return self.op, self.case, self.direction, self.solution

    @property
    def id(self) -> tuple[str, ...]:
        """The run, the tier and the key; a case that a run repeated has it twice."""
        return (self.run, self.tier, *self.key)

    @property
    def fine(self) -> bool:
        """Return whether the verdict is not a failure."""
        return self.verdict in FINE

    @property
    def disturbed(self) -> Influences:
        """The influences on the times other than the solution.

        The power cap is not one of them: dense products run at it too, and they are the limit of
        the solutions that reach it.
        """
        state = self.device_state
        reasons = [word for word in state.get("throttled", ()) if word != POWER_CAP]
        if state.get("slow_probes"):
            reasons.append(SLOW_PROBES)
        if others := state.get("others"):
            reasons.append(f"shared with {others} other process{'es' * (others > 1)}")
        if state.get("elsewhere"):
            reasons.append("another device than the case's other rows")
        of_host = [SLOW_PROBES] if state.get("slow_host_probes") else []
        found = {"gpu": reasons, "host": of_host}
        return {clock: each for clock, each in found.items() if each}


# --- counted work ---------------------------------------------------------------------------------


class Step(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="step", omit_defaults=True
):
    """One operator or one launch; every number is in bytes unless it says otherwise."""


class Operator(Step, frozen=True, kw_only=True, tag="operator"):
    """An operator of torch's own."""

    operator: str
    read: int
    """Of its inputs, each element in memory once."""
    written: int
    flops: int = 0
    """Operations of products; 0 for other operators."""
    dtype: str = ""
    plain: bool = True
    """Whether all tensors have one shape and lie whole in memory, in the same order."""


class Launch(Step, frozen=True, kw_only=True, tag="launch"):
    """A launch of a Triton kernel; the sums are of all programs, as a sample of them tells."""

    kernel: str
    grid: tuple[int, int, int]
    """Programs along each axis."""
    constants: dict[str, Any]
    warps: int
    """Of a program."""
    stages: int
    sampled: int
    """Programs that were run."""
    spread: float
    """The standard deviation of their work over its mean."""
    loaded: int
    """Bytes that lanes load, those that several lanes load once for each."""
    stored: int
    requested: int
    """Bytes of the sectors of 32 bytes that each load touches."""
    sent: int
    """Bytes of the sectors that each store touches."""
    fetched: int
    """Bytes of the sectors that each program reads, once for the program."""
    read: int
    """Bytes of the sectors that the launch reads, once for all programs."""
    written: int
    """Bytes of the sectors that it writes, once."""
    flops: dict[str, int]
    """Operations of `tl.dot`, by the operands' type: `bf16`, `fp16`, `tf32`, `fp32` and so on."""
    tile: tuple[int, int, int]
    """m, n and k of the largest `tl.dot`; zeros without one."""
    rounds: float
    """Waits for memory, one after the other, of the average program."""
    longest: float
    """The work of the heaviest program over that of the average one."""
    longest_rounds: float

    @property
    def programs(self) -> int:
        """The number of programs."""
        x, y, z = self.grid
        return x * y * z


Steps = list[Operator | Launch]


class Counted(Line, frozen=True, kw_only=True, tag="counted"):
    """The counted work of one direction of one board case of one solution, at its true shape."""

    solution: str
    peer: bool = False
    op: str
    case: str
    row: str
    """The name of the case in this run's rows: without a GPU that of the twin."""
    params: dict[str, Any]
    track: str
    ranked_by: ByClock
    direction: Direction
    bytes: int
    """The least that any solution moves, in this direction and those before it."""
    flops: int
    sources: str
    harness: str
    steps: Steps
    """Of forward, or of forward with backward."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The op, case, direction and solution."""
        return self.op, self.case, self.direction, self.solution


class LeftOut(Line, frozen=True, kw_only=True, tag="left_out"):
    """A case that does not fit the device, even for eager alone."""

    op: str
    case: str
    tier: Tier = "board"
    reason: str
    """For example `needs 9.1 GiB, 7.8 GiB free`."""


class Compiled(Line, frozen=True, kw_only=True, tag="compiled"):
    """One kernel of a case, compiled for a target; or the reason for which the call ended there."""

    solution: str
    op: str
    case: str
    target: str
    sources: str
    """Digest of the solution with its helpers."""
    kernel: str = ""
    """Empty where the call ended before its last kernel."""
    figures: dict[str, float | None] = msgspec.field(default_factory=dict)
    """See `figures` in `tools/figures.py`."""
    files: dict[str, str] = msgspec.field(default_factory=dict)
    """The kernel's files in Triton's cache, by ending; no record has them."""
    direction: Direction | None = None
    """The direction that launched it first; no record has it."""
    verdict: str = "PASSED"
    reason: str = ""


class Past(Line, frozen=True, kw_only=True, tag="past"):
    """A superseded row that `prune` cut down to a line of history, by the time that ranked it."""

    solution: str
    op: str
    case: str
    direction: Direction
    tier: Tier = "board"
    verdict: str
    error: float | None = None
    ranked_by: ByClock
    time: Summary | None = None
    eager: float | None = None
    """Eager's median."""

    @classmethod
    def of(cls, row: Record) -> Past:
        """Return the history that the row leaves."""
        times = row.host if row.ranked_by == "host" else row.gpu
        return cls(
            schema=SCHEMA, run=row.run, solution=row.solution, op=row.op, case=row.case,
            direction=row.direction, tier=row.tier, verdict=row.verdict, error=row.error,
            ranked_by=row.ranked_by, time=times.get("solution"),
            eager=times["eager"].median if times else None,
        )  # fmt: skip


class MemoryUse(TypedDict, total=False):
    """Bytes of a GPU's memory in a run; empty where there was no GPU."""

    budget: int
    """The most that the run might take."""
    harness: int
    """The most that the harness's own process took."""
    device: int
    """The most that the whole run took: the harness, the baseline and the solutions."""


class End(Line, frozen=True, kw_only=True, tag="end"):
    """The last line of a run that finished."""

    memory: MemoryUse = {}
    seconds: float | None = None
    """The wall time of the whole run, or of its part since it was last interrupted."""


Anything = Run | Record | Counted | LeftOut | Compiled | Past | End
FORMAT = jsonl.Format(msgspec.json.Decoder(Anything), SCHEMA, "bench")
