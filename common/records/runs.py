"""The records of runs, one file for each run: `results/<device>/<time>-<run>.jsonl`.

The first line of a file describes the run. A row for each solution, case and direction follows. The
last line marks the end; a run without it was interrupted and can be continued. The order of names
is the order of time. Drawing a board opens only these files; the raw samples are beside them, on
the machine that measured.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from common import paths
from common.errors import UserError
from common.printable import complain
from common.records.lines import SCHEMA, Anything, Counted, End, Record, Run
from common.spec import ByClock, Op, Tier

SAMPLES = ".samples.jsonl"


@dataclass(frozen=True)
class Results:
    """The runs of one device with their rows, in chronological order."""

    path: Path
    """The device's folder."""
    runs: list[Run] = field(default_factory=list)
    rows: list[Record] = field(default_factory=list)
    finished: set[str] = field(default_factory=set)
    counted: list[Counted] = field(default_factory=list)
    _shown: dict[Tier, list[Record]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def latest(self, tier: Tier = "board") -> list[Record]:
        """Return the last row of each solution, op, case and direction, in the order of the cases.

        The cases of an op are in the order of their bytes, and by name where these are equal, since
        each run measures them in another order. Within a case, forward comes first, and the rows of
        a direction are in chronological order.

        Cases that an op no longer has are not included: a run over all solutions names the cases of
        its ops, and rows of other cases from before the run are dropped.
        """
        if tier in self._shown:
            return self._shown[tier]
        order = {run.run: number for number, run in enumerate(self.runs)}
        named = {
            op: (number, cases) for number, run in enumerate(self.runs)
            if (run.selection.tier, run.selection.only) == (tier, None)
            for op, cases in run.cases.items()
        }  # fmt: skip
        rows = [row for row in self.rows if row.tier == tier]
        latest: dict[tuple[str, ...], Record] = {}
        for row in sorted(rows, key=lambda row: order.get(row.run, 0)):
            latest.pop(row.key, None)  # so that superseded rows do not affect the order
            number, cases = named.get(row.op, (0, ()))
            if row.case in cases or order.get(row.run, 0) >= number:
                latest[row.key] = row
        size: dict[tuple[str, str], int] = {}
        for row in latest.values():
            size[row.op, row.case] = min(row.bytes, size.get((row.op, row.case), row.bytes))

        def place(row: Record) -> tuple[str, int, str, bool]:
            return row.op, size[row.op, row.case], row.case, row.direction == "backward"

        self._shown[tier] = sorted(latest.values(), key=place)
        return self._shown[tier]

    @property
    def latest_counts(self) -> dict[tuple[str, ...], Counted]:
        """The latest counted work, by its key: solution, op, case and direction."""
        return {line.key: line for line in self.counted}

    def repeated(self) -> list[Record]:
        """Return the board's earlier rows of the latest rows' sources, clock and versions."""
        versions = {run.run: run.versions for run in self.runs}

        def state(row: Record) -> tuple[object, ...]:
            return row.key, row.sources, row.clock, versions.get(row.run)

        latest = {row.key: row for row in self.latest()}
        return [
            row for row in self.rows
            if row.gpu and row.tier == "board" and (last := latest.get(row.key))
            if row.run != last.run and state(row) == state(last)
        ]  # fmt: skip

    def of_op(self, op: str | None) -> Results:
        """Return the results of one op; of all ops for None."""
        return replace(
            self,
            rows=[row for row in self.rows if op in (None, row.op)],
            counted=[line for line in self.counted if op in (None, line.op)],
        )

    def of_board(self, op: Op[Any]) -> list[Record]:
        """Return the latest rows of an op, of the board's cases that the op still has."""
        names = {case.name for case in op.cases("board")}
        return [row for row in self.of_op(op.name).latest() if row.case in names]

    @property
    def versions(self) -> dict[str, str]:
        """The versions and machines in the runs of the board's rows; what a later run says wins."""
        shown = {row.run for row in self.latest()}
        said = [run.versions | run.machine for run in self.runs if run.run in shown]
        return {name: version for each in said for name, version in each.items()}

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


# --- reading --------------------------------------------------------------------------------------


def files(folder: Path) -> list[Path]:
    """Return the files of a device's runs, the oldest first."""
    return sorted(path for path in folder.glob("*.jsonl") if not path.name.endswith(SAMPLES))


def read(folder: Path, of: Iterable[Path] | None = None) -> Results:
    """Return the records in all files of a device, or only in the files `of`.

    Raises:
        UserError: A line is not valid.
    """
    lines = [line for path in (files(folder) if of is None else of) for line in _lines(path)]
    return Results(
        folder,
        runs=[line for line in lines if isinstance(line, Run)],
        rows=[line for line in lines if isinstance(line, Record)],
        finished={line.run for line in lines if isinstance(line, End)},
        counted=[line for line in lines if isinstance(line, Counted)],
    )


def read_all(folder: Path | None = None) -> list[Results]:
    """Return the records of every device that has a row.

    The device with the most rows on its board comes first; devices without times come last.
    """
    by_device = [read(path) for path in sorted((folder or paths.RESULTS).glob("*/"))]
    by_device.sort(key=lambda results: (results.timed, len(results.latest())), reverse=True)
    return [results for results in by_device if results.rows]


# --- writing --------------------------------------------------------------------------------------

Samples = Mapping[ByClock, Mapping[str, Sequence[float]]]
"""A row's raw samples in microseconds, by clock and timed callable; empty without timing."""


def new_file(folder: Path, run: str) -> Path:
    """Return the path of a run that begins now: `20261121T082930.125000Z-57df38dac757.jsonl`.

    The microseconds keep two runs of the same second in chronological order.
    """
    return folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}-{run}.jsonl"


def samples_file(path: Path) -> Path:
    """Return the path of the raw samples of the run with this file.

    Git ignores it, and no board needs it. If a case was measured again after an interrupt, its last
    line has the samples of the row.
    """
    return path.with_name(path.stem + SAMPLES)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a device's folder for one writer.

    Raises:
        UserError: Another run is writing to the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            name = f"{folder.parent.name}/{folder.name}"
            raise UserError(f"another run is writing to {name}: wait for it to end") from None
        yield
    finally:
        os.close(descriptor)


# --- the lines of a file --------------------------------------------------------------------------

_DECODER = msgspec.json.Decoder(Anything)
"""Decodes one line, and validates its types, names and schema number."""


def _lines(path: Path) -> list[Anything]:
    """Return the file's lines in order; an empty list if the first line was cut off.

    If a kill cut the last line off, drop that line with a notice on stderr.

    Raises:
        UserError: A line is not valid or belongs to another run than the first line; the message
            names the file, the line, the reason and the fix.
    """
    *complete, torn = path.read_bytes().split(b"\n")
    if torn:
        complain(f"dropped the last line of {path.name}, cut off in writing")
    lines: list[Anything] = []
    for number, text in enumerate(complete, start=1):
        try:
            lines.append(_DECODER.decode(text))
        except ValueError as error:  # from msgspec, or from bytes that are not UTF-8
            raise _invalid(path, number, str(error)) from None
        if lines[-1].run != lines[0].run or isinstance(lines[-1], Run) != (number == 1):
            foreign = "a file begins with its run and holds the lines of no other"
            raise _invalid(path, number, foreign)
    return lines


def _invalid(path: Path, number: int, reason: str) -> UserError:
    """Return the error for an invalid line, with the fix."""
    fix = "git pull if a newer checkout wrote it; else remove that line, or the file, and run bench"
    return UserError(f"{path}: line {number} is no record of schema {SCHEMA} ({reason}): {fix}")


class Writer:
    """Appends complete lines to a file, whose folder is locked against other writers."""

    def __init__(self, path: Path) -> None:
        """Open the file at its end, after removing an incomplete last line."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)  # no buffer writes the rest after an interrupt
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        self._left = self._stamp()

    def write(self, *lines: msgspec.Struct | dict[str, Any]) -> None:
        """Append lines with one write, so that a kill of this process hardly ever separates them.

        Raises:
            UserError: Another process changed the file, or the disk is full.
        """
        if self._stamp() != self._left:
            fix = "remove it, and give the same command again"
            raise UserError(f"{self.path}: another process changed the file: {fix}")
        rest = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        try:
            while rest:  # a write to an almost full disk is short, without an error
                rest = rest[self._file.write(rest) :]
        except OSError as error:  # the next writer removes an incomplete line
            fix = "make room there, and the same command goes on"
            raise UserError(f"{self.path}: {error.strerror}: {fix}") from None
        finally:
            self._left = self._stamp()

    def close(self) -> None:
        """Write the file to the disk, and close it."""
        os.fsync(self._file.fileno())
        self._file.close()

    def _stamp(self) -> tuple[int, ...]:
        """Return the file's size, time and inode; an empty tuple if the file does not exist."""
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(self.path)
            return status.st_size, status.st_mtime_ns, status.st_ino
        return ()


class RunWriter(Writer):
    """Writes the lines of a new or continued run as they come; each method may raise UserError."""

    _samples: Writer | None = None

    def rows(self, rows: Sequence[Record], samples: Sequence[Samples] = ()) -> None:
        """Write rows with one write, and the raw samples of each timed row."""
        timed = [(row, times) for row, times in zip(rows, samples, strict=False) if times]
        if timed:
            self._samples = self._samples or Writer(samples_file(self.path))
            self._samples.write(*(_line(row, times) for row, times in timed))
        self.write(*rows)

    def end(self, run: str, seconds: float | None = None) -> None:
        """Write the last line, with the run's wall time."""
        self.write(End(schema=SCHEMA, run=run, seconds=seconds and round(seconds, 1)))

    def close(self) -> None:
        """Close the files."""
        super().close()
        if self._samples:
            self._samples.close()


def _line(row: Record, samples: Samples) -> dict[str, Any]:
    """Return the line of a row's samples, to the clock's own resolution, in chronological order."""
    rounded = {
        clock: {name: [round(us, 2) for us in of_name] for name, of_name in times.items()}
        for clock, times in samples.items()
    }
    names = ("solution", "case", "direction")
    return {name: getattr(row, name) for name in names} | rounded
