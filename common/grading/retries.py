"""What is tried again: the one table of causes, and the failed tries of a case and a solution.

A failure that another process may have caused is tried again as RETRIES states.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from enum import Enum, auto
from typing import NamedTuple

from common.errors import Kind, ServerEnded, kind_of
from common.solutions import Solution
from common.verdicts import ISOLATED_TOO, Failure, Verdict


class Cause(Enum):
    """A cause of a failed try that may be outside the solution."""

    OUT_OF_MEMORY = "the GPU's memory ran out"
    KILLED = "a SIGKILL of unknown origin ended the solution's process"
    SERVER_ENDED = "the fork server ended, and all processes with it"
    LATE = "the solution gave no answer in time while others ran"
    EAGER = "eager's process failed or sent an invalid reply"
    FORGED = "the reported times are shorter than the stopwatch allows"
    LEFTOVER_WORK = "the probe is slow while the solution's process exists, and quick without it"
    OTHER_LOAD = "the probe is slow even without the solution's process"


class Remedy(Enum):
    """An action of the harness before the next try."""

    NONE = auto()
    ALONE = auto()
    """End every other process; none starts until the tries end."""
    RESTART_EAGER = auto()
    COUNT_SLOW_PROBES = auto()
    """Take times in spite of slow probes; the row states the number of rounds with them."""


class Retry(NamedTuple):
    """The consequence of a failure with a cause."""

    times: int
    """The number of further tries."""
    remedy: Remedy
    end: str
    """The result if the cause recurs in the last try."""


RETRIES = {
    Cause.OUT_OF_MEMORY: Retry(1, Remedy.ALONE, "RUNTIME_ERROR, or a case that is left out"),
    Cause.KILLED: Retry(1, Remedy.ALONE, "CRASHED"),
    Cause.SERVER_ENDED: Retry(1, Remedy.ALONE, "TAMPERED"),
    Cause.LATE: Retry(1, Remedy.ALONE, "TIMEOUT"),
    Cause.EAGER: Retry(2, Remedy.RESTART_EAGER, "no time"),
    Cause.FORGED: Retry(2, Remedy.NONE, "TAMPERED"),
    Cause.LEFTOVER_WORK: Retry(2, Remedy.NONE, "TAMPERED"),
    Cause.OTHER_LOAD: Retry(1, Remedy.COUNT_SLOW_PROBES, "no time"),
}
"""What is tried again. A graded case is tried again after all others, a timed case at once."""

KINDS = {
    Kind.OUT_OF_MEMORY: Cause.OUT_OF_MEMORY,
    Kind.BUSY: Cause.OUT_OF_MEMORY,
    Kind.KILLED: Cause.KILLED,
    Kind.LATE: Cause.LATE,
}
"""The causes that follow from the kind of a failure or of a verdict."""


class Tries:
    """The failed tries of one case, by cause.

    For example:

        tries = Tries()
        while True:
            try:
                return run()
            except Exception as error:
                remedy = tries.remedy(error)
            ...  # apply the remedy
    """

    def __init__(self) -> None:
        """Start without a failure."""
        self._failed = Counter[Cause]()

    def remedy(self, error: Exception) -> Remedy:
        """Return what to do before the next try.

        Raises:
            Failure: CRASHED, if a process was killed although no other process ran.
            Exception: The error itself, if it has no cause in RETRIES or has recurred too often.
        """
        if not (cause := cause_of(error)):
            raise error
        error.__traceback__ = error.__context__ = None  # their frames hold a case's results
        self._failed[cause] += 1
        if self._failed[cause] <= RETRIES[cause].times:
            return RETRIES[cause].remedy
        if cause is Cause.KILLED:
            raise Failure(RETRIES[cause].end, f"{error}, {ISOLATED_TOO}")
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
