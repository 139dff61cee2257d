"""Records of what was measured: one file a run, `results/<device>/<time>-<run>.jsonl`.

A file begins with a line for the run, holds a row for each solution, case and direction and a line
for each case that does not fit the device, and ends with a line of its own; a run without its end
was interrupted and can be continued. The newest files of a device come last by name. Drawing a
board opens these files alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Literal

import msgspec

from common import paths
from common.records import jsonl
from common.records.lines import (
    FORMAT,
    Anything,
    Compiled,
    Counted,
    End,
    LeftOut,
    MemoryUse,
    Past,
    Record,
    Run,
)
from common.spec import Tier

SECOND = "%Y%m%dT%H%M%S"
"""The second at which a run began, in the name of its file."""


@dataclass(frozen=True)
class Results:
    """The runs of one device with their rows, in the order of time."""

    path: Path
    """The device's folder."""
    runs: list[Run] = field(default_factory=list)
    rows: list[Record] = field(default_factory=list)
    finished: set[str] = field(default_factory=set)
    past: list[Past] = field(default_factory=list)
    compiled: list[Compiled] = field(default_factory=list)
    counted: list[Counted] = field(default_factory=list)
    left_out_lines: list[LeftOut] = field(default_factory=list)
    """Of every run; `left_out` returns those that still hold."""
    memory: dict[str, MemoryUse] = field(default_factory=dict)
    """The memory of each finished run on a GPU."""
    names: dict[str, str] = field(default_factory=dict)
    """The name of each run's file, which begins with the time."""
    _latest: dict[Tier, list[Record]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def latest(self, tier: Tier = "board") -> list[Record]:
        """Return the last row of each solution, op, case and direction, in the order of time.

        Two kinds of cases are not among them: those that an op no longer has, which neither the
        op's last finished run over all solutions measured nor a later run, and those left out.
        """
        if tier not in self._latest:
            self._latest[tier] = self._last_rows(tier)
        return self._latest[tier]

    def left_out(self, tier: Tier = "board") -> list[LeftOut]:
        """Return the last line of each case that the device has no room for, by op and case.

        A row of a later run ends it. A run over some solutions alone leaves out no case that has a
        row: the case fits the device, and that run merely found less memory free.
        """
        if not self.left_out_lines:  # there may be a million rows
            return []
        order, current = self._order, self._current(tier)
        measured: dict[tuple[str, str], int] = {}
        for row in self.rows:
            if row.tier == tier:
                of = row.op, row.case
                measured[of] = max(measured.get(of, 0), order.get(row.run, 0))
        found, whole = {}, self.whole
        for line in self.left_out_lines:
            of = line.op, line.case
            holds = of not in measured or (line.run in whole and order[line.run] >= measured[of])
            if line.tier == tier and of in current and holds:
                found[of] = line
        return [found[of] for of in sorted(found)]

    @property
    def whole(self) -> set[str]:
        """The finished runs over all solutions."""
        return {run.run for run in self.runs if run.whole and run.run in self.finished}

    @property
    def _order(self) -> dict[str, int]:
        return {run.run: number for number, run in enumerate(self.runs)}

    def _current(self, tier: Tier) -> set[tuple[str, str]]:
        """Return the ops with the cases that they still have."""
        order, whole = self._order, self.whole
        lines: Iterable[Past | LeftOut | Record] = chain(self.past, self.left_out_lines, self.rows)
        asked = {(line.op, line.run, line.case) for line in lines if line.tier == tier}
        last: dict[str, int] = {}
        for op, run, _ in asked:
            if run in whole:
                last[op] = max(last.get(op, 0), order[run])
        return {(op, case) for op, run, case in asked if order.get(run, 0) >= last.get(op, 0)}

    def _last_rows(self, tier: Tier) -> list[Record]:
        shown = self._current(tier) - {(line.op, line.case) for line in self.left_out(tier)}
        rows: dict[tuple[str, ...], Record] = {}
        for row in reversed(self.rows):  # so that no superseded row decides the order
            if row.tier == tier and (row.op, row.case) in shown:
                rows.setdefault(row.key, row)
        return list(rows.values())[::-1]

    def of_op(self, op: str | None) -> Results:
        """Return the rows of one op alone, or all."""
        rows = [row for row in self.rows if op in (None, row.op)]
        left_out = [line for line in self.left_out_lines if op in (None, line.op)]
        counted = [line for line in self.counted if op in (None, line.op)]
        return replace(self, rows=rows, left_out_lines=left_out, counted=counted)

    @property
    def versions(self) -> dict[str, str]:
        """The packages of the runs that the board's rows are from; a later run's version wins."""
        shown = {row.run for row in self.latest()}
        runs = [run for run in self.runs if run.run in shown]
        return {name: version for run in runs for name, version in run.versions.items()}

    @property
    def absent(self) -> dict[str, str]:
        """The peers that the latest run lacked and no row of the board is of, with the reasons."""
        shown = {row.solution.partition("/")[0] for row in self.latest() if row.peer}
        lacked = self.runs[-1].absent.items()
        return {peer: reason for peer, reason in lacked if peer not in shown}

    @property
    def timed(self) -> bool:
        """Return whether a GPU measured the latest run."""
        return bool(self.runs) and self.runs[-1].device != "cpu"


SAMPLES = ".samples.jsonl"
FOREIGN = "a file begins with its run and holds the lines of no other"


def files(folder: Path) -> list[Path]:
    """Return the runs' files of a device, the oldest first."""
    paths = sorted(folder.glob("*.jsonl"))
    return [path for path in paths if not path.name.endswith(SAMPLES)]


def moment(name: str) -> datetime | None:
    """Return the time at which a run began, from its file's name; None where it has none.

    >>> moment("20261121T082930.125000Z-57df38dac757.jsonl").isoformat()
    '2026-11-21T08:29:30+00:00'
    """
    try:
        return datetime.strptime(name[:15], SECOND).replace(tzinfo=UTC)
    except ValueError:
        return None


def lines(path: Path) -> list[Anything]:
    """Return the lines of one run's file; none where its first line was cut off.

    Raises:
        UserError: A line is not valid, or is not of the run that the file begins with.
    """
    lines = jsonl.read(path, FORMAT)
    run = lines[0].run if lines else ""
    for number, line in enumerate(lines, start=1):
        if line.run != run or isinstance(line, Run) != (number == 1):
            raise FORMAT.invalid(path, number, FOREIGN)
    return lines


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
                    results.names[line.run] = path.name
                case Counted():
                    results.counted.append(line)
                case Past():
                    results.past.append(line)
                case Compiled():
                    results.compiled.append(line)
                case LeftOut():
                    results.left_out_lines.append(line)
                case End():
                    results.finished.add(line.run)
                    if line.memory:
                        results.memory[line.run] = line.memory
    return results


def read_all(folder: Path | None = None) -> list[Results]:
    """Return the records of every device that has a row; those that a GPU measured come first."""
    found = [read(path) for path in sorted((folder or paths.RESULTS).glob("*/"))]
    return sorted((each for each in found if each.rows), key=lambda each: not each.timed)


# --- devices --------------------------------------------------------------------------------------

INTERPRETER = "CPU, Triton's interpreter"
"""The name that stands for a device where there is no GPU."""


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One device of one node, as records name it."""

    device: Literal["cpu", "cuda"]
    name: str
    """The device's name as torch has it, or one that stands for it."""
    node: str
    """The host's name."""
    uuid: str
    """The GPU's UUID; `cpu` without a GPU."""
    versions: dict[str, str]
    """Of Python and of the packages that take part."""
    memory_gib: int = 0
    """The most that a run may take of the GPU's memory, rounded; 0 without a GPU."""

    @property
    def kind(self) -> str:
        """The folder of the records of all devices of this kind."""
        return folder_of(self.name)


def folder_of(name: str) -> str:
    """Return the folder of a device's name: `nvidia-h200` for `NVIDIA H200`, `cpu` for none."""
    if name == INTERPRETER:
        return "cpu"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
