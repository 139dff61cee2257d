"""A case under way: its problem, and the verdicts to come of each worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import NamedTuple

from common.errors import ServerEnded, is_out_of_memory
from common.grading.problem import Problem
from common.grading.second_try import Verdicts
from common.grading.worker import Worker
from common.spec import Case


class Answered(NamedTuple):
    """A worker's answer to a case."""

    worker: Worker
    verdicts: Verdicts | None
    """None where the harness failed."""
    differentiable: frozenset[bool]
    """The worker's, as it was after this case: it may be far ahead when the answer is looked at."""

    @classmethod
    def by(cls, worker: Worker, ask: Callable[[], Verdicts]) -> Answered:
        """Return the answer; where the harness failed an exception would hold tensors."""
        verdicts = None
        try:
            verdicts = ask()
        except ServerEnded:
            pass
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        return cls(worker, verdicts, frozenset(worker.differentiable))


@dataclass
class PendingCase:
    """A case, the problem that is made of it, each worker's job, and the memory for all of them."""

    case: Case
    make: Callable[[bool], Problem]
    """Makes the problem: a frugal one, or as the budget allows; the same each time."""
    problem: Future[Problem]
    jobs: list[Future[Answered]]
    needed: int
    """The bytes of the GPU's memory that it needs while it is under way."""
    _is_outline: bool = False

    @property
    def done(self) -> bool:
        """Whether every worker is done with it."""
        return all(job.done() for job in self.jobs)

    def wait(self) -> None:
        """Wait until every worker is done with it."""
        wait(self.jobs)

    def let_go(self) -> None:
        """Keep no more of a problem than its outline, once nobody is to be asked any more."""
        if self._is_outline or not self.done or self.problem.exception():
            return
        if not any(must_be_asked_again(job.result()) for job in self.jobs):
            outline = self.problem.result().outline
            self.problem, self._is_outline = Future(), True
            self.problem.set_result(outline)


def wait_for_any(pending: Iterable[PendingCase]) -> None:
    """Wait until another worker is done with one of the cases."""
    left = [job for each in pending for job in each.jobs if not job.done()]
    wait(left, return_when=FIRST_COMPLETED)


def must_be_asked_again(answered: Answered) -> bool:
    """Return whether others may have caused the failure.

    No verdicts came, memory ran out, or the process was killed. A solution that was killed alone as
    often as it has lives is not asked again for that.
    """
    if (verdicts := answered.verdicts) is None:
        return True
    killed = any(each.killed for each in verdicts.values()) and not answered.worker.spent
    return killed or any(each.ran_out for each in verdicts.values())
