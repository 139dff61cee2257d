"""A run of `bench`, new or continued, and its record on disk."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from common import paths
from common.measure.machine import digests_of, peak
from common.records import lines, runs, writer
from common.records.lines import SCHEMA, Counted, LeftOut, Record, Run, Selection
from common.records.runs import Place, Results
from common.records.writer import RunWriter, Samples
from common.solutions import Solution
from common.spec import DIRECTIONS


class Recording:
    """One run on devices of one kind: what is kept of earlier ones, and the writing of the rest."""

    def __init__(
        self,
        folder: Path,
        place: Place,
        solutions: Sequence[Solution],
        selection: Selection,
        absent: Mapping[str, str],
    ) -> None:
        """Find what is kept, and write the first line of a new run; see `recording`."""
        fresh, digests = _fresh(place, selection, absent), digests_of(solutions)
        last = runs.files(folder)[-1:]
        earlier = runs.read(folder, last)
        found = _unfinished(earlier, fresh, digests)
        self.run, self.resumed = found or fresh, found is not None
        self.path = last[0] if found else writer.new_file(folder, fresh.run)
        self.kept, unchanged = _whole(earlier.rows) if found else [], []
        if not found and place.device == "cpu":
            self.kept = unchanged = _unchanged(runs.read(folder), fresh, digests)
        self.done = {(row.solution, row.op, row.case) for row in self.kept}
        """Solution, op and case of those that need not be run."""
        left = {(line.op, line.case) for line in earlier.left_out_lines} if found else set()
        self.skipped = self.done | {(each.name, *case) for each in solutions for case in left}
        """These, and all solutions on cases that do not fit."""
        if found:
            writer.mend(self.path, self.done)
        self._begun, self._lines = time.monotonic(), RunWriter(self.path)
        if not found:
            self._lines.write(self.run)
        self.rows([msgspec.structs.replace(row, run=self.run.run) for row in unchanged])

    def rows(self, rows: Sequence[Record], samples: Sequence[Samples | None] = ()) -> None:
        """Write the rows of a case, and the raw samples of those that were timed."""
        self._lines.rows(rows, samples)

    def left_out(self, op: str, case: str, reason: str) -> LeftOut:
        """Write and return the line on a case that does not fit."""
        tier, run = self.run.selection.tier, self.run.run
        line = LeftOut(schema=SCHEMA, run=run, op=op, case=case, tier=tier, reason=reason)
        self._lines.write(line)
        return line

    def counted(self, line: Counted) -> None:
        """Write the counted work of a case."""
        self._lines.write(line)

    def end(self, memory: lines.Memory | None) -> None:
        """Write the last line, with the run's GPU memory."""
        self._lines.end(self.run.run, memory, time.monotonic() - self._begun)

    def close(self) -> None:
        """Close the file; the solutions have ended."""
        self._lines.close()


@contextlib.contextmanager
def recording(
    place: Place,
    solutions: Sequence[Solution],
    selection: Selection,
    absent: Mapping[str, str],
) -> Iterator[Recording]:
    """Begin a run on a kind of device, or go on with its last one, and close its file at the end.

    The last run is continued if it was interrupted and measured the same. Without a GPU nothing is
    timed, and what earlier runs found in order of the same sources is kept.

    Args:
        place: A device of the kind.
        solutions: The solutions.
        selection: The options that chose the solutions.
        absent: The peers that are not among them, with the reason.

    Raises:
        UserError: Another run is writing, or a solution changed the record.
    """
    folder = paths.RESULTS / place.kind
    with (
        writer.locked(folder),
        contextlib.closing(Recording(folder, place, solutions, selection, absent)) as begun,
    ):
        yield begun


def _fresh(place: Place, selection: Selection, absent: Mapping[str, str]) -> Run:
    return Run(
        schema=SCHEMA,
        run=uuid.uuid4().hex[:12],
        device=place.device,
        device_name=place.name,
        versions=place.versions,
        absent=dict(absent),
        selection=selection,
        peak=peak(place.name),
        memory_gib=place.memory_gib,
    )


def _whole(rows: Sequence[Record]) -> list[Record]:
    """Return the rows of cases with a row for each direction: a kill may have cut off the last."""
    known = {(row.solution, row.op, row.case, row.direction) for row in rows}
    cases = {case[:3] for case in known}
    done = {case for case in cases if all((*case, each) in known for each in DIRECTIONS)}
    return [row for row in rows if (row.solution, row.op, row.case) in done]


def _unchanged(
    earlier: Results, fresh: Run, digests: dict[Solution, tuple[str, str]]
) -> list[Record]:
    """Return the rows that are in order of finished runs with the same sources and versions."""
    versions = {run.run: run.versions for run in earlier.runs if run.run in earlier.finished}
    now = filter(_same_sources(digests), earlier.latest(fresh.selection.tier))
    same = [row for row in now if row.fine and versions.get(row.run) == fresh.versions]
    return _whole(same)


def _unfinished(
    earlier: Results, fresh: Run, digests: dict[Solution, tuple[str, str]]
) -> Run | None:
    """Return the last run, if it was interrupted and measured just what is to be measured now."""
    if not earlier.runs or earlier.runs[-1].run in earlier.finished:
        return None
    last = earlier.runs[-1]
    if earlier.left_out_lines and last.memory_gib != fresh.memory_gib:
        return None  # they may fit now
    same = (last.versions, last.selection, last.absent, last.device_name) == (
        fresh.versions, fresh.selection, fresh.absent, fresh.device_name,
    )  # fmt: skip
    rows = (row for row in earlier.rows if row.run == last.run)
    return last if same and all(map(_same_sources(digests), rows)) else None


def _same_sources(digests: Mapping[Solution, tuple[str, str]]) -> Callable[[Record], bool]:
    """Return whether a row is of the sources as they are now."""
    now = {(each.name, each.op): digest for each, digest in digests.items()}
    return lambda row: now.get((row.solution, row.op)) == (row.sources, row.harness)
