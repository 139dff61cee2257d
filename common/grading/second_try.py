"""A case asked once more with nothing beside it, where others may have caused its failure.

Memory that runs out is the solution's fault only if eager, in the solution's place, has enough.
Where eager has not, the case does not fit the device. A process that ends by SIGKILL, which the
kernel sends where the host's memory runs out, is the solution's fault if it ends so alone too.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass

from common.errors import Kind, is_out_of_memory, out_of_memory
from common.grading.problem import Problem
from common.grading.room import Room
from common.grading.worker import Worker
from common.spec import Direction
from common.verdicts import Verdict

Verdicts = dict[Direction, Verdict]


@dataclass
class SecondTry:
    """One case, for each solution whose first answer does not count."""

    room: Room
    make: Callable[[bool], Problem]
    """Makes the problem: a frugal one, or as the budget allows."""
    grade: Callable[[Problem, Worker], Verdicts]
    eager: Worker
    """Eager's, in which nothing else is graded."""
    problem: Problem | None = None

    def verdicts(self, worker: Worker) -> Verdicts | str:
        """Return the verdicts, or the reason for which the case does not fit the device.

        The draws are those of the first time, so that the solution is asked no less.
        Where the harness itself runs out, the problem is made again as a frugal one. A solution
        that runs out does not get that: it asks less of a solution.
        """
        for frugal in (False, True):
            found = self._graded(worker, frugal)
            if isinstance(found, dict):
                ran_out = [each.reason for each in found.values() if each.ran_out]
                return found if not ran_out or self._fits() else ran_out[0]
        if self.problem is None or not self._fits():
            return found
        return self._blamed(worker, f"{found} beside it")

    def _graded(self, worker: Worker, frugal: bool) -> Verdicts | str:
        """Return the verdicts, or the reason for which the harness ran out of memory."""
        try:
            with self.room.alone(worker):
                return self.grade(self._problem(frugal), worker)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            reason = out_of_memory(error)
        gc.collect()  # the frames of the exception held the case's tensors
        return reason

    def _problem(self, frugal: bool) -> Problem:
        """Return the problem; where it has to be another one, let go of this one first."""
        if self.problem is None or (frugal and not self.problem.frugal):
            self.problem = None
            gc.collect()
            self.problem = self.make(frugal)
            self.room.make(sys.maxsize, keep=[])  # what the oracle has left in the cache
        return self.problem

    def _fits(self) -> bool:
        """Return whether eager has enough memory in a solution's place."""
        found = self._graded(self.eager, frugal=True)
        self.eager.close()
        return isinstance(found, dict) and not any(each.ran_out for each in found.values())

    def _blamed(self, worker: Worker, reason: str) -> Verdicts:
        assert self.problem is not None
        op, case = self.problem.op, self.problem.case
        failed = functools.partial(
            Verdict, worker.solution.name, op.name, case.name, kind=Kind.OUT_OF_MEMORY
        )
        return {each: failed(each, "RUNTIME_ERROR", reason) for each in case.directions}
