"""The deaths of one solution's processes, and which of them count against it.

The kernel ends a solution's process first where the host's memory runs out, whoever took it. So a
SIGKILL that the harness has not sent counts only where nothing else was at work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from common.errors import Kind
from common.verdicts import Failure

LIVES = 2
"""Deaths after which a solution is not run again."""


class Died(Failure):
    """The process did not reply and was ended; `verdict` is CRASHED, TIMEOUT or TAMPERED."""


class Deaths(list[Died]):
    """The deaths that count."""

    def __init__(self) -> None:
        """Begin with none."""
        super().__init__()
        self.kills: list[Died] = []
        """Those by a SIGKILL of unknown origin. As many as there are lives keep the solution from
        being run too, but only until it is asked alone."""
        self._alone = False

    def kill(self) -> Died:
        """Return a death by a SIGKILL that the harness has not sent, and keep it."""
        kind = Kind.KILLED_ALONE if self._alone else Kind.KILLED
        beside = ", also with nothing beside it" if self._alone else ""
        death = Died("CRASHED", f"the process ended by SIGKILL{beside}", kind)
        (self if self._alone else self.kills).append(death)
        return death

    def in_place_of_a_run(self, lives: float) -> Died | None:
        """Return the end of a request for which the solution is not run, once it has no life."""
        for several in (self, self.kills):
            if len(several) >= lives:
                last = several[-1]
                reason = f"not run again after {lives} such ends: {last.reason}"
                return Died(last.verdict, reason, last.kind)
        return None

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Forget the deaths inside, of requests that decide nothing."""
        counts = len(self), len(self.kills)
        try:
            yield
        finally:
            del self[counts[0] :], self.kills[counts[1] :]

    @contextlib.contextmanager
    def with_nothing_beside(self) -> Iterator[list[Died]]:
        """Count each SIGKILL inside, in place of those before; yield a list, at the end of them."""
        self.kills.clear()
        self._alone, found, before = True, list[Died](), len(self)
        try:
            yield found
        finally:
            self._alone = False
            found += [death for death in self[before:] if death.kind is Kind.KILLED_ALONE]
