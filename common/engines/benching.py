"""A run of `bench` on every kind of device of an engine, each with a record of its own.

A run is new, or goes on with the last one of its kind of device where that was interrupted.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from common import ops, paths
from common.engines.engine import Answer, Engine, RowsAnswer, TooLargeAnswer
from common.errors import UserError
from common.grading import counting
from common.grading.counting import Count
from common.grading.sweep import eager_of
from common.measure.machine import digests_of, peak
from common.records import runs, writer
from common.records.lines import SCHEMA, Counted, LeftOut, MemoryUse, Record, Run, Selection, Steps
from common.records.runs import DeviceInfo, Results
from common.records.writer import RunWriter
from common.solutions import Solution
from common.spec import DIRECTIONS


@dataclass(frozen=True)
class Planned:
    """The number of rows of the whole run, kept ones included."""

    rows: int


@dataclass(frozen=True)
class Taken:
    """A row that was measured and recorded, now or by an earlier run."""

    row: Record
    kept: bool = False


@dataclass(frozen=True)
class Recorded:
    """The end of a run: its file, and how many cases it kept from an earlier one.

    With `resumed` the earlier one is the same run before it was interrupted.
    """

    path: Path
    kept: int
    resumed: bool = True


Event = Planned | Taken | str | LeftOut | Counted | Recorded
"""A text is a line for the user, on an executor that was lost, say."""


def bench(engine: Engine, selection: Selection, absent: Mapping[str, str]) -> Generator[Event]:
    """Yield each row and what was counted, then the end of each run; close it to interrupt.

    Args:
        engine: The devices, with the job.
        selection: The options that chose the solutions.
        absent: The peers that do not take part, with the reason.

    Raises:
        UserError: The tier has no cases, another run is writing, a solution changed the record, or
            no device is left.
    """
    solutions = engine.job.solutions
    with contextlib.ExitStack() as files:  # closed once the solutions have ended
        with engine:
            rows = sum(len(DIRECTIONS) * engine.count(kind) for kind in engine.kinds)
            if not rows:
                which = selection.op or "what is chosen"
                raise UserError(f"{which} has no cases of tier {selection.tier}")
            begun = {
                kind: files.enter_context(
                    recording(found[0].device_info, solutions, selection, absent)
                )
                for kind, found in engine.kinds.items()
            }
            yield Planned(rows)
            yield from engine.notes
            for each in begun.values():
                yield from (Taken(row, kept=True) for row in each.kept)
            yield from _measured(engine, begun)
            memory = {kind: dict(each) for kind, each in engine.memory.items()}
        for kind, each in begun.items():
            yield from _counted(each, solutions)
            most = msgspec.convert(memory.get(kind, {}), MemoryUse) or None  # none: all was kept
            each.lines.end(each.run.run, most, time.monotonic() - each.began)
    for each in begun.values():
        yield Recorded(each.path, len(each.done), each.resumed)


def _measured(engine: Engine, begun: Mapping[str, Recording]) -> Iterator[Event]:
    """Measure and write what is not kept, case by case."""
    tasks = {kind: engine.tasks(kind, each.run.run, each.skipped) for kind, each in begun.items()}
    for kind, found in engine.run(tasks):
        if isinstance(found, str):
            yield found
        else:
            yield from _written(begun[kind], found)


def _written(begun: Recording, found: Sequence[Answer]) -> Iterator[Taken | LeftOut]:
    """Write the answers of one case, all at once, and yield them."""
    measured = [each for each in found if isinstance(each, RowsAnswer)]
    rows = [begun.noted(row) for each in measured for row in each.rows]
    begun.lines.rows(rows, [samples for each in measured for samples in each.samples])
    yield from map(Taken, rows)
    for each in found:
        if isinstance(each, TooLargeAnswer):
            tier, run = begun.run.selection.tier, begun.run.run
            line = LeftOut(
                schema=SCHEMA, run=run, op=each.op, case=each.case, tier=tier, reason=each.reason
            )
            begun.lines.write(line)
            yield line


def _counted(begun: Recording, solutions: Sequence[Solution]) -> Iterator[Counted]:
    """Count and write the work of a run without a GPU, of eager too: the unit of every speed."""
    run = begun.run
    if run.device != "cpu" or run.selection.tier != "board":
        return
    whole = {op.name: eager_of(op) for op in ops.whole(solution.op for solution in solutions)}
    asked = [solution for solution in solutions if solution.op in whole]
    everyone = list(dict.fromkeys([*asked, *whole.values()]))
    for counted in counts(everyone, run.run, digests_of(everyone)):
        begun.lines.write(counted)
        yield counted


def counts(
    solutions: Sequence[Solution], run: str, digests: Mapping[Solution, tuple[str, str]]
) -> Iterator[Counted]:
    """Yield the work of every board case that each solution supports, at its true shape.

    What a solution's process says in another form is left out.
    """
    for found in counting.count(solutions):
        with contextlib.suppress(msgspec.ValidationError):
            yield _line(found, run, digests[found.solution])


def _line(count: Count, run: str, digests: tuple[str, str]) -> Counted:
    """Return the line of one count; its least work is that of all directions up to its own."""
    op, case = count.op, count.case
    least = op.timed_work(case, count.direction)
    return Counted(
        schema=SCHEMA,
        run=run,
        solution=count.solution.name,
        peer=count.solution.peer,
        op=op.name,
        case=case.name,
        row=op.twin(case).name,
        params=case.params,
        track=case.track_of(count.direction),
        ranked_by=case.ranked_by,
        direction=count.direction,
        bytes=least.bytes,
        flops=least.flops,
        sources=digests[0],
        harness=digests[1],
        steps=msgspec.convert(count.steps, Steps),
    )


# --- a run, new or continued ----------------------------------------------------------------------


@dataclass
class Recording:
    """One run on devices of one kind: what is kept of earlier ones, and the writing of the rest."""

    run: Run
    path: Path
    lines: RunWriter
    kept: list[Record]
    skipped: set[tuple[str, str, str]]
    """Solution, op and case of the kept rows, and of all solutions on cases that do not fit."""
    resumed: bool
    began: float = field(default_factory=time.monotonic)
    first: dict[tuple[str, str], str] = field(default_factory=dict)
    """The device of the first timed row of each op and case."""

    def __post_init__(self) -> None:
        """Note the devices of the kept rows."""
        for row in self.kept:
            self.noted(row)

    @property
    def done(self) -> set[tuple[str, str, str]]:
        """Solution, op and case of those that need not be run."""
        return _done(self.kept)

    def noted(self, row: Record) -> Record:
        """Return a timed row with the case's first device, where that is another than its own."""
        if not row.gpu:
            return row
        other = self.first.setdefault((row.op, row.case), row.device)
        if other == row.device:
            return row
        return msgspec.structs.replace(row, device_state=row.device_state | {"elsewhere": other})


@contextlib.contextmanager
def recording(
    device_info: DeviceInfo,
    solutions: Sequence[Solution],
    selection: Selection,
    absent: Mapping[str, str],
) -> Iterator[Recording]:
    """Begin a run on a kind of device, or go on with its last one, and close its file at the end.

    The last run is continued if it was interrupted and measured the same. Without a GPU nothing is
    timed, and what earlier runs found in order of the same sources is kept.

    Args:
        device_info: A device of the kind.
        solutions: The solutions.
        selection: The options that chose the solutions.
        absent: The peers that are not among them, with the reason.

    Raises:
        UserError: Another run is writing, or a solution changed the record.
    """
    folder = paths.RESULTS / device_info.kind
    with writer.locked(folder):
        fresh, digests = _fresh(device_info, selection, absent), digests_of(solutions)
        last = runs.files(folder)[-1:]
        earlier = runs.read(folder, last)
        run = _unfinished(earlier, fresh, digests)
        kept, left = list[Record](), set[tuple[str, str]]()
        if run:
            path, kept = last[0], _whole(earlier.rows)
            left = {(line.op, line.case) for line in earlier.left_out_lines}
            writer.drop_unfinished(path, _done(kept))
        else:
            path = writer.new_file(folder, fresh.run)
            if device_info.device == "cpu":
                kept = _unchanged(runs.read(folder), fresh, digests)
        skipped = _done(kept) | {(solution.name, *case) for solution in solutions for case in left}
        with contextlib.closing(RunWriter(path)) as lines:
            begun = Recording(run or fresh, path, lines, kept, skipped, run is not None)
            if not run:
                lines.write(fresh)
                lines.rows([msgspec.structs.replace(row, run=fresh.run) for row in kept])
            yield begun


def _done(rows: Sequence[Record]) -> set[tuple[str, str, str]]:
    return {(row.solution, row.op, row.case) for row in rows}


def _fresh(device_info: DeviceInfo, selection: Selection, absent: Mapping[str, str]) -> Run:
    return Run(
        schema=SCHEMA,
        run=uuid.uuid4().hex[:12],
        device=device_info.device,
        device_name=device_info.name,
        versions=device_info.versions,
        absent=dict(absent),
        selection=selection,
        peak=peak(device_info.name),
        memory_gib=device_info.memory_gib,
    )


def _whole(rows: Sequence[Record]) -> list[Record]:
    """Return the rows of cases with a row for each direction: a kill may have cut off the last."""
    known = {(row.solution, row.op, row.case, row.direction) for row in rows}
    cases = {case[:3] for case in known}
    done = {case for case in cases if all((*case, direction) in known for direction in DIRECTIONS)}
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
