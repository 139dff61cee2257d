"""The log of a call's accesses that left their tensors, and the line that makes one."""

from __future__ import annotations

import itertools
import os
import sys

import triton

from common import source


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


_NOT_A_KERNEL = tuple(os.path.dirname(path) + os.sep for path in (triton.__file__, __file__))
"""The folders of Triton and of this package, whose frames stand between a check and a kernel."""


def kernel_line() -> str:
    """Return the kernel's line that runs now: `line 12 of rope.py: tl.store(...)`."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(_NOT_A_KERNEL):
        frame = frame.f_back
    return source.of_frame(frame)
