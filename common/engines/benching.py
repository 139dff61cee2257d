"""A run of `bench` on every kind of device of an engine, each with a record of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from common import ops, paths
from common.engines.engine import Answer, Engine, Rows, TooLarge
from common.errors import UserError
from common.grading import counting
from common.grading.counting import Count
from common.grading.sweep import eager_of
from common.measure.machine import digests_of
from common.measure.recording import Recording, recording
from common.records import runs
from common.records.lines import SCHEMA, Counted, LeftOut, Memory, Record, Selection, Steps
from common.solutions import Solution
from common.spec import DIRECTIONS


@dataclass(frozen=True)
class Planned:
    """The number of rows of the whole run, kept ones included."""

    rows: int


@dataclass(frozen=True)
class Kept:
    """A row that an interrupted run had measured."""

    row: Record


@dataclass(frozen=True)
class Taken:
    """A row that was measured and recorded now."""

    row: Record


@dataclass(frozen=True)
class Note:
    """A line for the user, on a station that was lost, say."""

    line: str


@dataclass(frozen=True)
class Recorded:
    """The end of a run: its file, and how many cases it kept from an earlier one.

    With `resumed` the earlier one is the same run before it was interrupted.
    """

    path: Path
    kept: int
    resumed: bool = True


Devices = dict[tuple[str, str], str]
"""The device of each op and case."""
Event = Planned | Kept | Taken | Note | LeftOut | Counted | Recorded


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
    runs.name_old_files(paths.RESULTS)
    solutions = engine.job.solutions
    with contextlib.ExitStack() as files:  # closed once the solutions have ended
        with engine:
            rows = sum(len(DIRECTIONS) * engine.count(kind) for kind in engine.kinds)
            if not rows:
                which = selection.op or "what is chosen"
                raise UserError(f"{which} has no cases of tier {selection.tier}")
            begun = {
                kind: files.enter_context(recording(found[0].place, solutions, selection, absent))
                for kind, found in engine.kinds.items()
            }
            yield Planned(rows)
            yield from map(Note, engine.notes)
            for each in begun.values():
                yield from map(Kept, each.kept)
            yield from _measured(engine, begun)
            memory = {kind: dict(each) for kind, each in engine.memory.items()}
        for kind, each in begun.items():
            yield from _counted(each, solutions)
            each.end(msgspec.convert(memory.get(kind, {}), Memory) or None)  # none: all was kept
    for each in begun.values():
        yield Recorded(each.path, len(each.done), each.resumed)


def _measured(engine: Engine, begun: Mapping[str, Recording]) -> Iterator[Event]:
    """Measure and write what is not kept, case by case."""
    tasks = {kind: engine.tasks(kind, each.run.run, each.skipped) for kind, each in begun.items()}
    first = {kind: _devices(each.kept) for kind, each in begun.items()}
    for kind, found in engine.run(tasks):
        if isinstance(found, str):
            yield Note(found)
        else:
            yield from _written(begun[kind], found, first[kind])


def _written(
    begun: Recording, found: Sequence[Answer], first: Devices
) -> Iterator[Taken | LeftOut]:
    """Write the answers of one case, all at once, and yield them."""
    measured = [each for each in found if isinstance(each, Rows)]
    rows = [_noted(row, first) for each in measured for row in each.rows]
    begun.rows(rows, [samples for each in measured for samples in each.samples])
    yield from map(Taken, rows)
    for each in found:
        if isinstance(each, TooLarge):
            yield begun.left_out(each.op, each.case, each.reason)


def _devices(rows: Iterable[Record]) -> Devices:
    """Return the device of each case's first timed row."""
    found: Devices = {}
    for row in rows:
        if row.gpu:
            found.setdefault((row.op, row.case), row.device)
    return found


def _noted(row: Record, first: Devices) -> Record:
    """Return a timed row with the case's other device, where that is another than its own.

    Args:
        row: The row.
        first: The device of each case's first timed row, to which this one is added.
    """
    other = first.setdefault((row.op, row.case), row.device) if row.gpu else row.device
    if other == row.device:
        return row
    return msgspec.structs.replace(row, device_state=row.device_state | {"elsewhere": other})


def _counted(begun: Recording, solutions: Sequence[Solution]) -> Iterator[Counted]:
    """Count and write the work of a run without a GPU, of eager too: the unit of every speed."""
    run = begun.run
    if run.device != "cpu" or run.selection.tier != "board":
        return
    whole = {op.name: eager_of(op) for op in ops.whole(each.op for each in solutions)}
    asked = [each for each in solutions if each.op in whole]
    everyone = list(dict.fromkeys([*asked, *whole.values()]))
    for counted in counts(everyone, run.run, digests_of(everyone)):
        begun.counted(counted)
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
    upto = DIRECTIONS[: DIRECTIONS.index(count.direction) + 1]
    least = [op.work(case, direction) for direction in upto]
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
        bytes=sum(each.bytes for each in least),
        flops=sum(each.flops for each in least),
        sources=digests[0],
        harness=digests[1],
        steps=msgspec.convert(count.steps, Steps),
    )
