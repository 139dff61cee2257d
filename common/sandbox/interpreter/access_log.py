"""The log of a call's accesses that left their tensors."""

from __future__ import annotations

import itertools


class AccessLog:
    """The accesses of one graded call that left their tensors.

    A solution that empties the list of faults is found out, since a counter runs beside it.
    """

    def __init__(self) -> None:
        """Begin with no fault."""
        self.faults: list[str] = []
        self.tally = itertools.count()

    def add(self, fault: str) -> None:
        """Log one access."""
        self.faults.append(fault)
        next(self.tally)

    def fault(self) -> str | None:
        """Return the first fault, if there is one; call this once, at the end."""
        if not next(self.tally):
            return None
        return next(filter(None, self.faults), "an access, whose trace the solution removed")
