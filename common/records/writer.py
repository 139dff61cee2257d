"""Write runs: their lines, a compressed file of their raw samples, and pruning."""

from __future__ import annotations

import lzma
import math
import os
import statistics
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from common import files
from common.errors import UserError
from common.records import jsonl, runs
from common.records.lines import (
    SCHEMA,
    Counted,
    End,
    HistoryLine,
    LeftOut,
    Line,
    MemoryUse,
    Record,
    Run,
)
from common.spec import Direction

STAMP = f"{runs.SECOND}.%fZ"
"""The format of the start in the name of a run's file."""
UNITS = 100
"""Samples are stored in units of 1/100 µs, the clock's own resolution."""


class Samples(Line, frozen=True, kw_only=True, tag="samples"):
    """The raw samples of one row's summaries, in chronological order.

    A list holds the samples' median, then each sample's difference from the median, in units of 10
    ns: 2.05, 2.04 and 2.07 µs are `[205, 0, -1, 2]`. This compresses better than the samples.
    """

    solution: str
    case: str
    direction: Direction
    gpu: dict[str, list[int]]
    host: dict[str, list[int]]

    @classmethod
    def of(cls, row: Record, gpu: Times, host: Times) -> Samples:
        """Return the samples of a row from samples in microseconds."""
        return cls(
            schema=SCHEMA, run=row.run, solution=row.solution, case=row.case,
            direction=row.direction,
            gpu={name: _packed(samples) for name, samples in gpu.items()},
            host={name: _packed(samples) for name, samples in host.items()},
        )  # fmt: skip


Times = Mapping[str, Sequence[float]]
FORMAT = jsonl.Format(msgspec.json.Decoder(Samples), SCHEMA, "bench")


def _packed(samples: Sequence[float]) -> list[int]:
    units = [round(us * UNITS) for us in samples]
    middle = statistics.median_low(units)
    return [middle, *(unit - middle for unit in units)]


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
    """Return the path of the raw samples during the run."""
    return path.with_name(path.stem + runs.SAMPLES)


def archive(path: Path) -> Path:
    """Return the path of the raw samples once the run has ended."""
    return path.with_name(samples_file(path).name + ".xz")


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
        path.parent.mkdir(parents=True, exist_ok=True)
        self._unpack()
        self._lines = jsonl.Writer(path)
        self._samples: jsonl.Writer | None = None
        self._ended = False

    def write(self, line: Run | Counted | LeftOut) -> None:
        """Write the first line, the counted work of a case, or a case that does not fit.

        Raises:
            UserError: Another process changed the file, whose content is restored.
        """
        self._lines.write(line)

    def rows(self, rows: Sequence[Record], samples: Sequence[Samples | None] = ()) -> None:
        """Write rows with one write, and the raw samples of timed rows.

        Raises:
            UserError: Another process changed a file, whose content is restored.
            ValueError: A row's error is infinite or NaN, which JSON does not have.
        """
        for row in rows:
            if row.error is not None and not math.isfinite(row.error):
                raise ValueError(f"{row.solution} {row.case}: an error of {row.error}")
        if timed := [sample for sample in samples if sample]:
            self._open_samples().write(*timed)
        self._lines.write(*rows)

    def end(self, run: str, memory: MemoryUse | None = None, seconds: float | None = None) -> None:
        """Compress the samples and write the last line, with the run's GPU memory and wall time.

        Raises:
            UserError: Another process changed a file, whose content is restored.
        """
        if self._samples or samples_file(self._path).exists():
            samples = self._open_samples()
            samples.check()
            packed = lzma.compress(samples.content, preset=9 | lzma.PRESET_EXTREME)
            files.replace(archive(self._path), packed)
        self._lines.write(
            End(schema=SCHEMA, run=run, memory=memory or {}, seconds=seconds and round(seconds, 1))
        )
        self._ended = True

    def close(self) -> None:
        """Close the files; remove the samples of an ended run, which the archive holds."""
        self._lines.close()
        if self._samples:
            self._samples.close()
        if self._ended:
            samples_file(self._path).unlink(missing_ok=True)

    def _open_samples(self) -> jsonl.Writer:
        if self._samples is None:
            self._samples = jsonl.Writer(samples_file(self._path))
        return self._samples

    def _unpack(self) -> None:
        """Unpack the samples of an ended run that continues, before a solution runs."""
        path, packed = samples_file(self._path), archive(self._path)
        if packed.exists() and not path.exists():
            files.replace(path, _unpacked(packed))


def drop_unfinished(path: Path, finished: Collection[tuple[str, str, str]]) -> None:
    """Drop the rows and samples of the cases that an interrupted run did not finish.

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
    samples = samples_file(path)
    cases = {(solution, case) for solution, _, case in finished}  # a solution has one op
    all_samples = jsonl.read(samples, FORMAT)
    kept_samples = [each for each in all_samples if (each.solution, each.case) in cases]
    if len(kept_samples) < len(all_samples):
        files.replace(samples, jsonl.encoded(kept_samples))


def read_samples(path: Path) -> list[Samples]:
    """Return the raw samples of the run with this file; an empty list if they were pruned.

    Raises:
        UserError: The file is damaged.
    """
    packed = archive(path)
    if not packed.exists():
        return jsonl.read(samples_file(path), FORMAT)
    return jsonl.parse(_unpacked(packed), packed, FORMAT)


def _unpacked(packed: Path) -> bytes:
    """Return the content of an archive of samples, or raise UserError if it is damaged."""
    try:
        return lzma.decompress(packed.read_bytes())
    except (lzma.LZMAError, EOFError):
        raise UserError(f"{packed}: is damaged; take it from git again, or remove it") from None


# --- pruning --------------------------------------------------------------------------------------


@dataclass
class Pruning:
    """The changes to the files of one device."""

    folder: Path
    samples: list[Path] = field(default_factory=list)
    """Files to remove."""
    contents: dict[Path, bytes] = field(default_factory=dict)
    """The new content of each run's file that changes."""
    rows: int = 0
    """The number of rows that become lines of history."""
    freed: int = 0
    """The number of freed bytes."""

    def __str__(self) -> str:
        """Return a description of the changes."""
        return (
            f"{self.folder.name}: remove {len(self.samples)} files of raw samples; shorten"
            f" {self.rows} superseded rows to a line of history each; frees {self.freed:,} bytes"
        )

    def carry_out(self) -> None:
        """Change the files, each file atomically.

        Raises:
            UserError: A run is writing to the folder.
        """
        with locked(self.folder):
            for path, content in self.contents.items():
                files.replace(path, content)
            for path in self.samples:
                path.unlink()


def pruning(folder: Path, needed: Container[tuple[str, ...]]) -> Pruning:
    """Return the changes to the ended runs of a device.

    A row that is not needed becomes a line of history. A run without a needed row loses its raw
    samples too.

    Args:
        folder: The device's folder.
        needed: The ids of the rows to keep.
    """
    pruning = Pruning(folder)
    paths = runs.files(folder)
    for path in paths:
        lines = runs.lines(path)
        under_way = path == paths[-1] and not (lines and isinstance(lines[-1], End))
        if under_way or not lines:  # only the newest run can be continued
            continue
        kept = [
            HistoryLine.of(line) if isinstance(line, Record) and line.id not in needed else line
            for line in lines
        ]
        if shortened := sum(after is not before for after, before in zip(kept, lines, strict=True)):
            content = jsonl.encoded(kept)
            pruning.rows += shortened
            pruning.contents[path] = content
            pruning.freed += path.stat().st_size - len(content)
        if not any(isinstance(line, Record) for line in kept):
            # packed samples or, after a kill, unpacked samples
            unneeded = [file for file in (archive(path), samples_file(path)) if file.exists()]
            pruning.samples += unneeded
            pruning.freed += sum(file.stat().st_size for file in unneeded)
    return pruning
