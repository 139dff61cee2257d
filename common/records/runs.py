"""Read the records of runs, one file for each run: `results/<device>/<time>-<run>.jsonl`.

The first line of a file describes the run. A row for each solution, case and direction follows, and
a line for each case that does not fit the device. The last line marks the end; a run without it was
interrupted and can be continued. The order of names is the order of time. Drawing a board opens
only these files.
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
    Counted,
    End,
    LeftOut,
    MemoryUse,
    Record,
    Run,
)
from common.spec import DIRECTIONS, Tier

SECOND = "%Y%m%dT%H%M%S"
"""The format of a run's start in the name of its file, to the second."""


@dataclass(frozen=True)
class Results:
    """The runs of one device with their rows, in chronological order."""

    path: Path
    """The device's folder."""
    runs: list[Run] = field(default_factory=list)
    rows: list[Record] = field(default_factory=list)
    finished: set[str] = field(default_factory=set)
    counted: list[Counted] = field(default_factory=list)
    left_out_lines: list[LeftOut] = field(default_factory=list)
    """The lines of every run; `left_out` returns the lines that still hold."""
    memory: dict[str, MemoryUse] = field(default_factory=dict)
    """The GPU memory of each finished run on a GPU."""
    names: dict[str, str] = field(default_factory=dict)
    """The name of each run's file, which begins with the run's start."""
    _latest: dict[Tier, list[Record]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def latest(self, tier: Tier = "board") -> list[Record]:
        """Return the last row of each solution, op, case and direction, in the order of the cases.

        The cases of an op are in the order of their bytes, and by name where these are equal, since
        each run measures them in another order. Within a case, forward comes first, and the rows of
        a direction are in chronological order.

        Left-out cases and cases that an op no longer has are not included. An op no longer has a
        case that neither the op's last finished run over all solutions nor a later run measured.
        """
        if tier not in self._latest:
            self._latest[tier] = self._last_rows(tier)
        return self._latest[tier]

    def left_out(self, tier: Tier = "board") -> list[LeftOut]:
        """Return the last line of each case that does not fit the device, by op and case.

        A row of a later run cancels the line. A run over some solutions cannot leave out a case
        that has a row: the case fits the device, and that run only found less free memory.
        """
        if not self.left_out_lines:  # there may be a million rows
            return []
        order, current, full_runs = self._order, self._current(tier), self.whole
        rows = (row for row in self.rows if row.tier == tier)
        measured = {(row.op, row.case): order.get(row.run, 0) for row in rows}  # the last one's
        last = {}
        for line in self.left_out_lines:
            case = line.op, line.case
            later = line.run in full_runs and order[line.run] >= measured.get(case, 0)
            if line.tier == tier and case in current and (later or case not in measured):
                last[case] = line
        return [last[case] for case in sorted(last)]

    @property
    def whole(self) -> set[str]:
        """The finished runs over all solutions."""
        return {run.run for run in self.runs if run.whole and run.run in self.finished}

    @property
    def _order(self) -> dict[str, int]:
        return {run.run: number for number, run in enumerate(self.runs)}

    def _current(self, tier: Tier) -> set[tuple[str, str]]:
        """Return the op and the name of each case that the op still has."""
        order, full_runs = self._order, self.whole
        lines: Iterable[LeftOut | Record] = chain(self.left_out_lines, self.rows)
        tested = {(line.op, line.run, line.case) for line in lines if line.tier == tier}
        last: dict[str, int] = {}
        for op, run, _ in tested:
            if run in full_runs:
                last[op] = max(last.get(op, 0), order[run])
        return {(op, case) for op, run, case in tested if order.get(run, 0) >= last.get(op, 0)}

    def _last_rows(self, tier: Tier) -> list[Record]:
        shown = self._current(tier) - {(line.op, line.case) for line in self.left_out(tier)}
        rows: dict[tuple[str, ...], Record] = {}
        for row in self.rows:
            if row.tier == tier and (row.op, row.case) in shown:
                rows.pop(row.key, None)  # so that superseded rows do not affect the order
                rows[row.key] = row
        size: dict[tuple[str, str], int] = {}
        for row in rows.values():
            size[row.op, row.case] = min(row.bytes, size.get((row.op, row.case), row.bytes))

        def place(row: Record) -> tuple[str, int, str, int]:
            return row.op, size[row.op, row.case], row.case, DIRECTIONS.index(row.direction)

        return sorted(rows.values(), key=place)

    def of_op(self, op: str | None) -> Results:
        """Return the results of one op; of all ops for None."""
        rows = [row for row in self.rows if op in (None, row.op)]
        left_out = [line for line in self.left_out_lines if op in (None, line.op)]
        counted = [line for line in self.counted if op in (None, line.op)]
        return replace(self, rows=rows, left_out_lines=left_out, counted=counted)

    @property
    def versions(self) -> dict[str, str]:
        """The package versions in the runs of the board's rows; a later run's version wins."""
        shown = {row.run for row in self.latest()}
        runs = [run for run in self.runs if run.run in shown]
        return {name: version for run in runs for name, version in run.versions.items()}

    @property
    def absent(self) -> dict[str, str]:
        """The peers without a row on the board that the latest run lacked, with the reasons."""
        shown = {row.solution.partition("/")[0] for row in self.latest() if row.peer}
        absent = self.runs[-1].absent.items()
        return {peer: reason for peer, reason in absent if peer not in shown}

    @property
    def timed(self) -> bool:
        """Return whether a GPU measured the latest run."""
        return bool(self.runs) and self.runs[-1].device != "cpu"


SAMPLES = ".samples.jsonl"
FOREIGN = "a file begins with its run and holds the lines of no other"


def files(folder: Path) -> list[Path]:
    """Return the files of a device's runs, the oldest first."""
    paths = sorted(folder.glob("*.jsonl"))
    return [path for path in paths if not path.name.endswith(SAMPLES)]


def moment(name: str) -> datetime | None:
    """Return a run's start from its file's name; None if the name does not begin with a time.

    >>> moment("20261121T082930.125000Z-57df38dac757.jsonl").isoformat()
    '2026-11-21T08:29:30+00:00'
    """
    try:
        return datetime.strptime(name[:15], SECOND).replace(tzinfo=UTC)
    except ValueError:
        return None


def lines(path: Path) -> list[Anything]:
    """Return the lines of one run's file; an empty list if the first line was cut off.

    Raises:
        UserError: A line is not valid or belongs to another run than the first line.
    """
    lines = jsonl.read(path, FORMAT)
    run = lines[0].run if lines else ""
    for number, line in enumerate(lines, start=1):
        if line.run != run or isinstance(line, Run) != (number == 1):
            raise FORMAT.invalid(path, number, FOREIGN)
    return lines


def read(folder: Path, of: Iterable[Path] | None = None) -> Results:
    """Return the records in all files of a device, or only in the files `of`.

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
                case LeftOut():
                    results.left_out_lines.append(line)
                case End():
                    results.finished.add(line.run)
                    if line.memory:
                        results.memory[line.run] = line.memory
    return results


def read_all(folder: Path | None = None) -> list[Results]:
    """Return the records of every device that has a row; GPUs come first."""
    by_device = [read(path) for path in sorted((folder or paths.RESULTS).glob("*/"))]
    with_rows = [results for results in by_device if results.rows]
    return sorted(with_rows, key=lambda results: not results.timed)


# --- devices --------------------------------------------------------------------------------------

INTERPRETER = "CPU, Triton's interpreter"
"""The device's name without a GPU."""


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One device of one node, as named in records."""

    device: Literal["cpu", "cuda"]
    name: str
    """The device's name from torch, or `INTERPRETER`."""
    node: str
    """The host's name."""
    uuid: str
    """The GPU's UUID; `cpu` without a GPU."""
    versions: dict[str, str]
    """The versions of Python and of the measured packages."""
    memory_gib: int = 0
    """A run's limit of GPU memory, rounded to GiB; 0 without a GPU."""

    @property
    def kind(self) -> str:
        """The folder with the records of all devices of this name."""
        return folder_of(self.name)


def folder_of(name: str) -> str:
    """Return a device's folder: `nvidia-h200` for `NVIDIA H200`, `cpu` for `INTERPRETER`."""
    if name == INTERPRETER:
        return "cpu"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
