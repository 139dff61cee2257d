"""A station: one harness on one device, which takes units of a job and answers with events.

Workers, compiled kernels, the calibration and the baseline stay from one unit to the next.
"""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import torch

from common.engines import paces
from common.engines.units import Answer, Finished, Job, Ready, Rows, TooLarge, Unit, Verdicts
from common.errors import UserError
from common.grading import sweep
from common.grading.compiling import Compiler
from common.grading.memory import Memory
from common.grading.sweep import Graded
from common.grading.tiers import no_bfloat16, repeats, tier_cases
from common.measure.machine import digests_of, place
from common.measure.rows import Measured, Measurement, record_of
from common.solutions import Solution
from common.spec import DIRECTIONS, Case, Op
from common.verdicts import Verdict


class Station:
    """The sweep of one device, and all that stays between two units; a context manager."""

    def __init__(self, job: Job) -> None:
        """Find the device and the cases that it has room for, and start a fork server.

        Raises:
            UserError: There is no such device, or the tier is not for it.
        """
        if job.device == "cuda" and not torch.cuda.is_available():
            raise UserError("torch finds no GPU: it is built without CUDA, or lacks the driver")
        self._job, self._solutions = job, job.solutions
        self._memory = Memory.of(job.device, job.memory)
        with contextlib.redirect_stderr(io.StringIO()) as notes:
            found = tier_cases(self._solutions, job.tier, job.device, job.sample, job.memory)
            self._ops = {op.name: (op, {case.name: case for case in cases}) for op, cases in found}
        self.place = place(job.device, self._solutions, self._memory.budget, job.name)
        self._notes = tuple(notes.getvalue().splitlines())
        if lacking := no_bfloat16(job.device):
            self._notes += (lacking,)
        quiet = not job.verbose
        self._compiler = Compiler(job.device, quiet)
        how: dict[str, Any] = {"quiet": quiet, "overlap": True}
        if job.command == "bench":  # timed, so that each case ends before the next begins
            how = {}
        self._sweep = sweep.Sweep(job.device, memory=self._memory, **how)
        self._measurement: Measurement | None = None

    def __enter__(self) -> Station:
        """Return the station."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers."""
        with self._compiler:
            self._sweep.__exit__()

    def ready(self) -> Ready:
        """Return the device and its cases; time eager where the job asks for that."""
        cases = {name: tuple(cases) for name, (_, cases) in self._ops.items()}
        pace = paces.pace(self._sweep) if self._job.pace else None
        return Ready(self.place, cases, self._notes, pace)

    def run(self, units: Iterable[Unit]) -> Iterator[Answer]:
        """Yield the answers to units, each for a solution and a case."""
        if self._job.command == "grade":
            found = (each for unit in units for each in self._graded(unit))
            yield from map(_verdicts, self._compiler.behind(found))
            return
        for unit in units:
            for row in self._measured(unit):
                yield self._rows(row) if isinstance(row, list) else _too_large(row)

    def crashed(self, unit: Unit) -> Iterator[Answer]:
        """Yield CRASHED for each solution and case of a unit, and run none."""
        op, cases, chosen = self._of(unit)
        for case in cases:
            for solution in chosen:
                if solution.name in unit.due(case.name):
                    yield self._crashed(unit, op, case, solution)

    def finished(self) -> Finished:
        """Return the end of a unit."""
        if self._job.device != "cuda":
            return Finished()
        harness, device = torch.cuda.max_memory_reserved(), self._memory.peak
        return Finished({"budget": self._memory.budget, "harness": harness, "device": device})

    def _of(self, unit: Unit) -> tuple[Op[Any], list[Case], list[Solution]]:
        """Return the op, the cases and the solutions of a unit."""
        op, cases = self._ops[unit.op]
        chosen = [s for s in self._solutions if s.op == unit.op and s.name in unit.solutions]
        return op, [cases[name] for name in unit.cases], chosen

    def _graded(self, unit: Unit) -> Iterator[Graded | sweep.TooLarge]:
        again = repeats(self._job.tier, self._job.device)
        return self._sweep.grade(*self._of(unit), _left_out(unit), again)

    def _measured(self, unit: Unit) -> Iterator[list[Measured] | sweep.TooLarge]:
        if self._measurement is None:
            self._measurement = Measurement(
                self._sweep, self._digests, unit.run, self._job.tier, through=self._compiler.behind
            )
        op, cases, chosen = self._of(unit)
        return self._measurement.measure(chosen, [(op, cases)], _left_out(unit))

    @functools.cached_property
    def _digests(self) -> dict[Solution, tuple[str, str]]:
        return digests_of(self._solutions)

    def _rows(self, found: Sequence[Measured]) -> Rows:
        """Return the rows as an event, with the node and the device."""
        where = {"node": self.place.node, "device": self.place.uuid}
        rows = tuple(msgspec.structs.replace(each.row, **where) for each in found)
        return Rows(rows, tuple(each.samples for each in found))

    def _crashed(self, unit: Unit, op: Op[Any], case: Case, solution: Solution) -> Answer:
        if self._job.command == "grade":
            one = functools.partial(Verdict, solution.name, op.name, case.name)
            found = (one(each, "CRASHED", unit.crashed) for each in case.directions)
            return Verdicts.of_all(found)
        rows = (
            record_of(
                op, case, direction, solution, run=unit.run, tier=self._job.tier,
                digests=self._digests[solution], verdict="CRASHED", reason=unit.crashed,
            )
            for direction in DIRECTIONS
        )  # fmt: skip
        return Rows(tuple(rows), (None,) * len(DIRECTIONS))


def _left_out(unit: Unit) -> Callable[[Solution, Case], bool]:
    return lambda solution, case: (solution.name, case.name) in unit.done


def _verdicts(found: Graded | sweep.TooLarge) -> Answer:
    if isinstance(found, sweep.TooLarge):
        return _too_large(found)
    return Verdicts.of_all(found.verdicts.values())


def _too_large(found: sweep.TooLarge) -> TooLarge:
    return TooLarge(found.op.name, found.case.name, found.reason)
