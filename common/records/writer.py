"""Write runs: their lines, and beside them the raw samples, which stay on this machine."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from common import files
from common.records import jsonl, runs
from common.records.lines import (
    SCHEMA,
    Counted,
    End,
    LeftOut,
    MemoryUse,
    Record,
    Run,
)
from common.spec import ByClock

STAMP = f"{runs.SECOND}.%fZ"
"""The format of the start in the name of a run's file."""
Samples = Mapping[ByClock, Mapping[str, Sequence[float]]]
"""A row's raw samples in microseconds, by clock and timed callable; empty without timing."""
DIGITS = 2
"""Samples are rounded to 1/100 µs, the clock's own resolution."""


def new_file(folder: Path, run: str) -> Path:
    """Return the path of a run that begins now: `20261121T082930.125000Z-57df38dac757.jsonl`.

    The microseconds keep two runs of the same second in chronological order. If the clock was set
    back, the start is a second after the latest run's, since the board takes the last file's rows.
    """
    start = datetime.now(UTC)
    for latest in runs.files(folder)[-1:]:
        if latest.name > f"{start:{STAMP}}" and (latest_start := runs.moment(latest.name)):
            start = latest_start + timedelta(seconds=1)
    return folder / f"{start:{STAMP}}-{run}.jsonl"


def samples_file(path: Path) -> Path:
    """Return the path of the raw samples of the run with this file.

    Git ignores it, and no board needs it. If a case was measured again after an interrupt, its last
    line has the samples of the row.
    """
    return path.with_name(path.stem + runs.SAMPLES)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a device's folder for one writer.

    Raises:
        UserError: Another run is writing to the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        jsonl.lock(descriptor, f"{folder.parent.name}/{folder.name}")
        yield
    finally:
        os.close(descriptor)


class RunWriter:
    """Writes the lines of a new or continued run as they come; see `jsonl.Writer`."""

    def __init__(self, path: Path) -> None:
        """Open the run's file."""
        self._path = path
        self._lines = jsonl.Writer(path)
        self._samples: jsonl.Writer | None = None

    def write(self, line: Run | Counted | LeftOut) -> None:
        """Write the first line, the counted work of a case, or a case that does not fit.

        Raises:
            UserError: Another process changed the file, or the disk is full.
        """
        self._lines.write(line)

    def rows(self, rows: Sequence[Record], samples: Sequence[Samples] = ()) -> None:
        """Write rows with one write, and the raw samples of each timed row.

        Raises:
            UserError: Another process changed a file, or the disk is full.
            ValueError: A row's error is infinite or NaN, which JSON does not have.
        """
        for row in rows:
            if row.error is not None and not math.isfinite(row.error):
                raise ValueError(f"{row.solution} {row.case}: an error of {row.error}")
        pairs = zip(rows, samples or [{}] * len(rows), strict=True)
        if timed := [_line(row, by_clock) for row, by_clock in pairs if by_clock]:
            self._samples = self._samples or jsonl.Writer(samples_file(self._path))
            self._samples.write(*timed)
        self._lines.write(*rows)

    def end(self, run: str, memory: MemoryUse | None = None, seconds: float | None = None) -> None:
        """Write the last line, with the run's GPU memory and wall time.

        Raises:
            UserError: Another process changed the file, or the disk is full.
        """
        self._lines.write(
            End(schema=SCHEMA, run=run, memory=memory or {}, seconds=seconds and round(seconds, 1))
        )

    def close(self) -> None:
        """Close the files."""
        self._lines.close()
        if self._samples:
            self._samples.close()


def _line(row: Record, samples: Samples) -> dict[str, Any]:
    """Return the line of a row's samples, in chronological order."""
    line: dict[str, Any] = {name: getattr(row, name) for name in ("solution", "case", "direction")}
    for clock, by_name in samples.items():
        line[clock] = {name: [round(us, DIGITS) for us in by_name[name]] for name in by_name}
    return line


def drop_unfinished(path: Path, finished: Collection[tuple[str, str, str]]) -> None:
    """Drop the rows of the cases that an interrupted run did not finish.

    Args:
        path: The run's file.
        finished: Solution, op and case of each finished case.
    """
    lines = runs.lines(path)
    kept = [
        line
        for line in lines
        if not isinstance(line, Record) or (line.solution, line.op, line.case) in finished
    ]
    if len(kept) < len(lines):
        files.replace(path, jsonl.encoded(kept))
