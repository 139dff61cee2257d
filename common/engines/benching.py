"""Run `bench` on every kind of device of an engine; each kind has its own run and file.

A run is new, or it continues the last run on the same kind of device if that was interrupted.
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
    """The number of rows of the whole run, including rows kept from earlier runs."""

    rows: int


@dataclass(frozen=True)
class Taken:
    """A row that was measured and recorded, now or by an earlier run."""

    row: Record
    kept: bool = False


@dataclass(frozen=True)
class Recorded:
    """The end of a run: its file, and the number of cases that it kept from earlier runs.

    With `resumed`, they are from the same run, before it was interrupted.
    """

    path: Path
    kept: int
    resumed: bool = True


Event = Planned | Taken | str | LeftOut | Counted | Recorded
"""A string is a message for the user, for example about a lost executor."""


def bench(engine: Engine, selection: Selection, absent: Mapping[str, str]) -> Generator[Event]:
    """Yield rows and counted work, then the end of each run; close the generator to interrupt.

    Args:
        engine: The devices, with the job.
        selection: The options that chose the solutions.
        absent: The reason why a peer does not take part, by peer.

    Raises:
        UserError: The tier has no cases, another run is writing, a solution changed the record, or
            no device is left.
    """
    solutions = engine.job.solutions
    with contextlib.ExitStack() as files:  # closed after the solutions' processes end
        with engine:
            rows = sum(len(DIRECTIONS) * engine.count(kind) for kind in engine.kinds)
            if not rows:
                chosen = selection.op or "the selection"
                raise UserError(f"{chosen} has no cases of tier {selection.tier}")
            open_runs = {
                kind: files.enter_context(
                    recording(executors[0].device_info, solutions, selection, absent)
                )
                for kind, executors in engine.kinds.items()
            }
            yield Planned(rows)
            yield from engine.notes
            for open_run in open_runs.values():
                yield from (Taken(row, kept=True) for row in open_run.kept)
            yield from _measure(engine, open_runs)
            peaks = {kind: dict(sizes) for kind, sizes in engine.memory.items()}
        for kind, open_run in open_runs.items():
            yield from _count(open_run, solutions)
            memory = msgspec.convert(peaks.get(kind, {}), MemoryUse) or None  # empty: all kept
            open_run.lines.end(open_run.run.run, memory, time.monotonic() - open_run.began)
    for open_run in open_runs.values():
        yield Recorded(open_run.path, len(open_run.done), open_run.resumed)


def _measure(engine: Engine, open_runs: Mapping[str, Recording]) -> Iterator[Event]:
    """Measure the cases that are not kept, and write the answers case by case."""
    tasks = {
        kind: engine.tasks(kind, open_run.run.run, open_run.skipped)
        for kind, open_run in open_runs.items()
    }
    for kind, answers in engine.run(tasks):
        if isinstance(answers, str):
            yield answers
        else:
            yield from _write(open_runs[kind], answers)


def _write(open_run: Recording, answers: Sequence[Answer]) -> Iterator[Taken | LeftOut]:
    """Write the answers to one case in one batch, and yield them."""
    measured = [answer for answer in answers if isinstance(answer, RowsAnswer)]
    rows = [open_run.noted(row) for answer in measured for row in answer.rows]
    open_run.lines.rows(rows, [samples for answer in measured for samples in answer.samples])
    yield from map(Taken, rows)
    tier, run = open_run.run.selection.tier, open_run.run.run
    for answer in answers:
        if isinstance(answer, TooLargeAnswer):
            op, case, reason = answer.op, answer.case, answer.reason
            line = LeftOut(schema=SCHEMA, run=run, op=op, case=case, tier=tier, reason=reason)
            open_run.lines.write(line)
            yield line


def _count(open_run: Recording, solutions: Sequence[Solution]) -> Iterator[Counted]:
    """Count and write the work of a run without a GPU, and eager's, the unit of every speed."""
    run = open_run.run
    if run.device != "cpu" or run.selection.tier != "board":
        return
    eager = {op.name: eager_of(op) for op in ops.valid(solution.op for solution in solutions)}
    chosen = [solution for solution in solutions if solution.op in eager]
    every = list(dict.fromkeys([*chosen, *eager.values()]))
    for counted in counts(every, run.run, digests_of(every)):
        open_run.lines.write(counted)
        yield counted


def counts(
    solutions: Sequence[Solution], run: str, digests: Mapping[Solution, tuple[str, str]]
) -> Iterator[Counted]:
    """Yield the work of every board case that each solution supports, at its true shape.

    Malformed counts from a solution's process are left out.
    """
    for count in counting.count(solutions):
        with contextlib.suppress(msgspec.ValidationError):
            yield _line(count, run, digests[count.solution])


def _line(count: Count, run: str, digests: tuple[str, str]) -> Counted:
    """Return the line of one count; the least work of `backward` includes forward's."""
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
    """One run on one kind of device: rows kept from earlier runs, and the writer of the rest."""

    run: Run
    path: Path
    lines: RunWriter
    kept: list[Record]
    skipped: set[tuple[str, str, str]]
    """Solution, op and case of kept rows, and of every solution for a case that does not fit."""
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
        """Solution, op and case of the kept rows."""
        return _done(self.kept)

    def noted(self, row: Record) -> Record:
        """Return a row; add the first device that timed its case, if that is another device."""
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
    """Begin a run on a kind of device, or continue its last run; close the file at the end.

    The last run is continued if it was interrupted and had the same options, versions and sources.
    Without a GPU nothing is timed: rows of earlier runs are kept if their sources and versions are
    the same and their verdict is not a failure.

    Args:
        device_info: A device of the kind.
        solutions: The solutions.
        selection: The options that chose the solutions.
        absent: The reason why a peer does not take part, by peer.

    Raises:
        UserError: Another run is writing, or a solution changed the record.
    """
    folder = paths.RESULTS / device_info.kind
    with writer.locked(folder):
        fresh, digests = _fresh(device_info, selection, absent), digests_of(solutions)
        last = runs.files(folder)[-1:]
        earlier = runs.read(folder, last)
        run = _unfinished(earlier, fresh, digests)
        kept, too_large = list[Record](), set[tuple[str, str]]()
        if run:
            path, kept = last[0], _complete(earlier.rows)
            too_large = {(line.op, line.case) for line in earlier.left_out_lines}
            writer.drop_unfinished(path, _done(kept))
        else:
            path = writer.new_file(folder, fresh.run)
            if device_info.device == "cpu":
                kept = _unchanged(runs.read(folder), fresh, digests)
        skipped = _done(kept)
        skipped |= {(solution.name, *case) for solution in solutions for case in too_large}
        with contextlib.closing(RunWriter(path)) as lines:
            open_run = Recording(run or fresh, path, lines, kept, skipped, run is not None)
            if not run:
                lines.write(fresh)
                lines.rows([msgspec.structs.replace(row, run=fresh.run) for row in kept])
            yield open_run


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


def _complete(rows: Sequence[Record]) -> list[Record]:
    """Return the rows of cases that have every direction: a kill may cut off the last case."""
    known = {(row.solution, row.op, row.case, row.direction) for row in rows}
    cases = {case[:3] for case in known}
    done = {case for case in cases if all((*case, direction) in known for direction in DIRECTIONS)}
    return [row for row in rows if (row.solution, row.op, row.case) in done]


def _unchanged(
    earlier: Results, fresh: Run, digests: dict[Solution, tuple[str, str]]
) -> list[Record]:
    """Return the rows without a failure of finished runs with the same sources and versions."""
    versions = {run.run: run.versions for run in earlier.runs if run.run in earlier.finished}
    rows = filter(_same_sources(digests), earlier.latest(fresh.selection.tier))
    return _complete([row for row in rows if row.fine and versions.get(row.run) == fresh.versions])


def _unfinished(
    earlier: Results, fresh: Run, digests: dict[Solution, tuple[str, str]]
) -> Run | None:
    """Return the last run if it was interrupted and had the same options, versions and sources."""
    if not earlier.runs or earlier.runs[-1].run in earlier.finished:
        return None
    last = earlier.runs[-1]
    if earlier.left_out_lines and last.memory_gib != fresh.memory_gib:
        return None  # cases that were too large may fit now
    same = (last.versions, last.selection, last.absent, last.device_name) == (
        fresh.versions, fresh.selection, fresh.absent, fresh.device_name,
    )  # fmt: skip
    rows = (row for row in earlier.rows if row.run == last.run)
    return last if same and all(map(_same_sources(digests), rows)) else None


def _same_sources(digests: Mapping[Solution, tuple[str, str]]) -> Callable[[Record], bool]:
    """Return a predicate: whether a row was measured with the current sources."""
    current = {(solution.name, solution.op): pair for solution, pair in digests.items()}
    return lambda row: current.get((row.solution, row.op)) == (row.sources, row.harness)
