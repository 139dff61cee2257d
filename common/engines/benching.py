"""Run `bench` on an engine's devices, and record it.

A run is new, or it continues the last run on the same kind of device if that was interrupted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from common import ops, paths
from common.engines import counting
from common.engines.engine import CaseResult, Engine
from common.errors import UserError
from common.grading.sweep import eager_of
from common.measure.machine import DeviceInfo, digests_of, folder_of
from common.records import runs
from common.records.lines import SCHEMA, Counted, Record, Run, Selection
from common.records.runs import Results, RunWriter
from common.solutions import Solution
from common.spec import DIRECTIONS


def bench(
    engine: Engine, selection: Selection, absent: Mapping[str, str], results: Path | None = None
) -> Generator[Event]:
    """Yield the run's new results and counted work, then the run; to interrupt it, close this.

    For the arguments after the engine see `recording`.

    Raises:
        UserError: The tier has no cases, another run is writing, a solution changed the record, or
            no device is left.
    """
    solutions = engine.job.solutions
    with contextlib.ExitStack() as files:  # closed after the solutions' processes end
        with engine:
            if not engine.tasks():
                chosen = selection.op or "the selection"
                raise UserError(f"{chosen} has no cases of tier {selection.tier}")
            device_info = engine.started.device_info
            due = [each for each in solutions if each.op in engine.started.cases]
            begun = recording(device_info, due, selection, absent, results)
            open_run = files.enter_context(begun)
            tasks, began = engine.tasks(open_run.kept), time.monotonic()
            yield len(DIRECTIONS) * sum(task.pairs for task in tasks)
            for result in engine.run(tasks):
                if isinstance(result, CaseResult):  # without rows if the case is too large
                    rows = tuple(replace(row, run=open_run.run.run) for row in result.rows)
                    open_run.lines.rows(rows, result.samples)
                    result = dataclasses.replace(result, rows=rows)
                yield result
        yield from _count(open_run, solutions, engine.job.cases)
        open_run.lines.end(open_run.run.run, time.monotonic() - began)
    yield open_run


def _count(
    open_run: Recording, solutions: Sequence[Solution], cases: Sequence[str]
) -> Iterator[Counted | None]:
    """Count and write the work of a run without a GPU, and eager's, the unit of every speed."""
    run = open_run.run
    if run.device != "cpu" or run.selection.tier != "board":
        return
    eager = {op.name: eager_of(op) for op in ops.valid(solution.op for solution in solutions)}
    chosen = [solution for solution in solutions if solution.op in eager]
    every = list(dict.fromkeys([*chosen, *eager.values()]))
    yield None
    digests = {(each.name, each.op): pair for each, pair in digests_of(every).items()}
    for counted in counting.counts(every, cases):
        sources, harness = digests[counted.solution, counted.op]
        own = {"run": run.run, "sources": sources, "harness": harness}
        open_run.lines.write(replace(counted, **own))
        yield counted


# --- a run, new or continued ----------------------------------------------------------------------


@dataclass
class Recording:
    """One run on one kind of device, which may go on, and the writer of its rows."""

    run: Run
    lines: RunWriter
    kept: set[tuple[str, str]]
    """The solution and the case of the rows that stand from before."""


Event = int | CaseResult | str | Counted | Recording | None
"""A number is that of the rows to come, and None their end, after which work is counted; a string
is a message for the user, for example about a lost executor."""


@contextlib.contextmanager
def recording(
    device_info: DeviceInfo,
    solutions: Sequence[Solution],
    selection: Selection,
    absent: Mapping[str, str],
    results: Path | None = None,
) -> Iterator[Recording]:
    """Begin a run on a kind of device, or continue its last run; close the file at the end.

    The last run is continued if it was interrupted and had the same options, versions and sources.
    Without a GPU nothing is timed, and finished rows without a failure stand while these do.
    The solutions are those of valid ops that the selection chose, and `absent` has the reason why a
    peer does not take part. `results` is the folder of all devices' records, by default the
    repository's.

    Raises:
        UserError: Another run is writing, or a solution changed the record.
    """
    folder, device = (results or paths.RESULTS) / folder_of(device_info.name), device_info.device
    cases = {
        op: [case.name for case in ops.load(op).tier(selection.tier, device)]
        for op in sorted({each.op for each in solutions})
    }
    fresh = Run(
        schema=SCHEMA, run=uuid.uuid4().hex[:12], absent=dict(absent), selection=selection,
        device=device, device_name=device_info.name, versions=device_info.versions,
        machine=device_info.machine, cases=cases,
    )  # fmt: skip
    with runs.locked(folder):
        last = runs.files(folder)[-1:]
        earlier = runs.read(folder, last)
        run = _unfinished(earlier, fresh, solutions)
        path = last[0] if run else runs.new_file(folder, fresh.run)
        # a kill may cut off the last case, which is measured again, and whose later rows count
        rows = earlier.rows if run else _standing(folder, fresh, solutions)
        directions = Counter((row.solution, row.case) for row in rows)
        kept = {case for case, count in directions.items() if count == len(DIRECTIONS)}
        with contextlib.closing(RunWriter(path)) as lines:
            if not run:
                lines.write(fresh)
                stand = (row for row in rows if (row.solution, row.case) in kept)
                lines.rows([replace(row, run=fresh.run) for row in stand])
            yield Recording(run or fresh, lines, kept)


def _unfinished(earlier: Results, fresh: Run, solutions: Sequence[Solution]) -> Run | None:
    """Return the last run if it was interrupted and had the same options, versions and sources."""
    if not earlier.runs or earlier.runs[-1].run in earlier.finished:
        return None
    last = earlier.runs[-1]
    same = last == replace(fresh, run=last.run)
    return last if same and len(_unchanged(earlier.rows, solutions)) == len(earlier.rows) else None


def _standing(folder: Path, fresh: Run, solutions: Sequence[Solution]) -> list[Record]:
    """Return the rows that a run without a GPU need not repeat."""
    if fresh.device != "cpu":
        return []
    earlier = runs.read(folder)
    same = {run.run for run in earlier.runs if run.versions == fresh.versions} & earlier.finished
    rows = earlier.latest(fresh.selection.tier)
    return _unchanged((row for row in rows if row.fine and row.run in same), solutions)


def _unchanged(rows: Iterable[Record], solutions: Sequence[Solution]) -> list[Record]:
    """Return the rows that were measured with the current sources of solution and harness."""
    now = {(each.name, each.op): pair for each, pair in digests_of(solutions).items()}
    return [row for row in rows if now.get((row.solution, row.op)) == (row.sources, row.harness)]
