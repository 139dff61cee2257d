"""What is tried again: the one table of causes, and the failed tries of a case and a solution."""

from __future__ import annotations

from collections import Counter, defaultdict
from enum import Enum
from typing import Literal

from common.errors import Kind, ServerEnded, kind_of
from common.solutions import Solution
from common.verdicts import ISOLATED_TOO, Failure, Verdict

Remedy = Literal["", "alone", "restart eager"]
"""An action of the harness before the next try. `alone`: end every other process; none starts until
the tries end."""


class Cause(Enum):
    """A cause of a failed try that may be outside the solution.

    A graded case is tried again after all others, a timed case at once.
    """

    OUT_OF_MEMORY = "the GPU lacks memory: RUNTIME_ERROR, or a case left out", 1, "alone"
    KILLED = "a SIGKILL of unknown origin ended the process: CRASHED", 1, "alone"
    SERVER_ENDED = "the fork server ended, and all processes with it: TAMPERED", 1, "alone"
    LATE = "no answer came in time while others ran: TIMEOUT", 1, "alone"
    EAGER = "eager's process failed or sent an invalid reply: no time", 2, "restart eager"
    FORGED = "the reported times are shorter than the stopwatch allows: TAMPERED", 2, ""
    LEFTOVER_WORK = "only beside the process the probe is slow: TAMPERED", 2, ""

    def __init__(self, what: str, times: int, remedy: Remedy) -> None:
        """Name the parts: what happened and, if it recurs, the result; further tries; remedy."""
        self.what, self.times, self.remedy = what, times, remedy


KINDS = {
    Kind.OUT_OF_MEMORY: Cause.OUT_OF_MEMORY,
    Kind.BUSY: Cause.OUT_OF_MEMORY,
    Kind.KILLED: Cause.KILLED,
    Kind.LATE: Cause.LATE,
}
"""The causes that follow from the kind of a failure or of a verdict."""


def remedy_of(error: Exception, failed: Counter[Cause]) -> Remedy:
    """Return what to do before the next try of a case; count the error in its failed tries.

    Raises:
        Failure: CRASHED, if a process was killed although no other process ran.
        Exception: The error itself, if it has no cause here or has recurred too often.
    """
    if not (cause := cause_of(error)):
        raise error
    error.__traceback__ = error.__context__ = None  # their frames hold a case's results
    failed[cause] += 1
    if failed[cause] <= cause.times:
        return cause.remedy
    if cause is Cause.KILLED:
        raise Failure("CRASHED", f"{error}, {ISOLATED_TOO}")
    raise error


def cause_of(error: Exception) -> Cause | None:
    """Return the cause outside the solution that a failure may have.

    It is the exception's attribute `cause`, or follows from its class or its kind.
    """
    if isinstance(error, ServerEnded):
        return Cause.SERVER_ENDED
    own = getattr(error, "cause", None)
    return own if isinstance(own, Cause) else KINDS.get(kind_of(error))


End = Failure | Verdict | ServerEnded
"""The end of a solution's process, or of all processes."""


class Ends:
    """The successive cases in which a solution's process ended, after which it is not run again."""

    LIMIT = 2
    """The number of these cases."""

    def __init__(self) -> None:
        """Start without an end."""
        self._ends: dict[Solution, list[End]] = defaultdict(list)

    def note(self, solution: Solution, end: End | None) -> None:
        """Add the end of a solution's process in the latest case; None if it went on."""
        self._ends[solution] = [*self._ends[solution], end] if end else []

    def refusal(self, solution: Solution) -> Failure | None:
        """Return the failure of a solution that is not run again; None if it is run.

        Raises:
            ServerEnded: The latest end was the fork server's.
        """
        ends = self._ends[solution]
        if len(ends) < self.LIMIT:
            return None
        if isinstance(end := ends[-1], ServerEnded):
            raise end
        reason = f"not run again after {self.LIMIT} such ends: {end.reason}"
        return Failure(end.verdict, reason, end.kind, end.places)
