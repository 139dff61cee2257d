"""Records of what was measured: one file a run, `results/<device>/<time>-<run>.jsonl`.

A file begins with a line for the run, holds a row for each solution, case and direction, and ends
with a line of its own; a run without its end was interrupted and can be continued. The newest
files of a device come last by name. Drawing a board opens these files alone.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import msgspec

from common import paths
from common.records import jsonl
from common.records.fields import POWER_CAP, SCHEMA, Line, Selection, State, Summary
from common.spec import ByClock, Direction, Tier
from common.verdicts import FINE


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
    sustained: dict[str, float] = {}  # noqa: RUF012
    """Microseconds of calls that run on and on: `solution`, `eager` and `dense`, where arithmetic
    binds."""
    clock: int = 1
    """The version of the clock; see `measure/timing.py`."""
    device_state: State = {}  # noqa: RUF012 - msgspec copies it, and omits it in lines
    """Empty where NVML could not be asked."""
    tier: Tier = "board"
    """`board` is ranked, `plot` is drawn."""

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
    def disturbed(self) -> str:
        """The influences on the times other than the solution; empty if none is known.

        The power cap is not one of them: dense products run at it too, and they are the limit of
        the solutions that reach it.
        """
        others = self.device_state.get("others", 0)
        company = [f"shared with {others} other process{'es' * (others > 1)}"] * bool(others)
        reasons = [word for word in self.device_state.get("throttled", ()) if word != POWER_CAP]
        slow = ["slow probes"] * bool(self.device_state.get("slow_probes", 0))
        return ", ".join([*reasons, *slow, *company])


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


class End(Line, frozen=True, kw_only=True, tag="end"):
    """The last line of a run that finished."""


Anything = Run | Record | Past | End
FORMAT = jsonl.Format(msgspec.json.Decoder(Anything), SCHEMA, "bench")


@dataclass(frozen=True)
class Results:
    """The runs of one device with their rows, in the order of time."""

    path: Path
    """The device's folder."""
    runs: list[Run] = field(default_factory=list)
    rows: list[Record] = field(default_factory=list)
    finished: set[str] = field(default_factory=set)
    past: list[Past] = field(default_factory=list)
    _latest: dict[Tier, list[Record]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def latest(self, tier: Tier = "board") -> list[Record]:
        """Return the last row of each solution, op, case and direction, in the order of time.

        A case that an op no longer has is left out: neither the op's last finished run over all
        solutions measured it, nor a later run.
        """
        if tier not in self._latest:
            self._latest[tier] = self._last_rows(tier)
        return self._latest[tier]

    def _last_rows(self, tier: Tier) -> list[Record]:
        order = {run.run: number for number, run in enumerate(self.runs)}
        whole = {run.run for run in self.runs if run.whole and run.run in self.finished}
        lines: Iterable[Past | Record] = chain(self.past, self.rows)
        measured = {(line.op, line.run, line.case) for line in lines if line.tier == tier}
        last: dict[str, int] = {}
        for op, run, _ in measured:
            if run in whole:
                last[op] = max(last.get(op, 0), order[run])
        current = {(op, case) for op, run, case in measured if order.get(run, 0) >= last.get(op, 0)}
        rows: dict[tuple[str, ...], Record] = {}
        for row in reversed(self.rows):  # so that no superseded row decides the order
            if row.tier == tier and (row.op, row.case) in current:
                rows.setdefault(row.key, row)
        return list(rows.values())[::-1]

    def of_op(self, op: str | None) -> Results:
        """Return the rows of one op alone, or all."""
        return replace(self, rows=[row for row in self.rows if op in (None, row.op)])

    @property
    def versions(self) -> dict[str, str]:
        """The packages of the runs that the board's rows are from; a later run's version wins."""
        shown = {row.run for row in self.latest()}
        runs = [run for run in self.runs if run.run in shown]
        return {name: version for run in runs for name, version in run.versions.items()}

    @property
    def timed(self) -> bool:
        """Return whether a GPU measured the latest run."""
        return bool(self.runs) and self.runs[-1].device != "cpu"


SAMPLES = ".samples.jsonl"


def files(folder: Path) -> list[Path]:
    """Return the runs' files of a device, the oldest first."""
    found = sorted(folder.glob("*.jsonl"))
    return [path for path in found if not path.name.endswith(SAMPLES)]


def lines(path: Path) -> list[Anything]:
    """Return the lines of one run's file; none where its first line was cut off.

    Raises:
        UserError: A line is not valid, or is not of the run that the file begins with.
    """
    found = jsonl.read(path, FORMAT)
    run = found[0].run if found else ""
    for number, line in enumerate(found, start=1):
        if line.run != run or isinstance(line, Run) != (number == 1):
            reason = "a file begins with its run and holds the lines of no other"
            raise FORMAT.invalid(path, number, reason)
    return found


def read(folder: Path, of: Iterable[Path] | None = None) -> Results:
    """Return the records of a device, or of some of its files alone.

    Raises:
        UserError: A line is not valid.
    """
    results = Results(folder)
    for path in files(folder) if of is None else of:
        for line in lines(path):
            match line:
                case Record():
                    results.rows.append(line)
                case Run():
                    results.runs.append(line)
                case Past():
                    results.past.append(line)
                case End():
                    results.finished.add(line.run)
    return results


def name_old_files(folder: Path) -> None:
    """Name each file of the old layout on stderr; none of them is read."""
    for old in sorted(folder.glob("*.jsonl")):
        print(f"study: left {old.name} alone: a file of the old layout", file=sys.stderr)


def read_all(folder: Path | None = None) -> list[Results]:
    """Return the records of every device that has a row; those that a GPU measured come first.

    A file of the old layout, `results/<device>.jsonl`, is named on stderr and left alone.
    """
    folder = folder or paths.RESULTS
    name_old_files(folder)
    with _without_collection():
        found = [read(each) for each in sorted(folder.glob("*/"))]
    shown = [each for each in found if each.runs and each.rows]
    return sorted(shown, key=lambda each: not each.timed)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Spare the collector the records: there may be a million, and none is in a cycle."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
