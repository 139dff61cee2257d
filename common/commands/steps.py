"""The steps of a long command: a bar on a terminal, elsewhere a line every half a minute."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from common.commands import options as shared

PERIOD = 30.0
"""Seconds between two lines where stderr is no terminal."""


class Steps:
    """The steps that are done, how many there are, and the time left; a context manager."""

    def __init__(
        self,
        unit: str,
        total: int,
        period: float = PERIOD,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the clock.

        Args:
            unit: The name of the steps, such as `rows`.
            total: The number of steps.
            period: Seconds between two lines.
            now: A clock in seconds.
        """
        self._unit, self._total, self._period, self._now = unit, total, period, now
        self._start, self._doing = now(), "starting"
        self._done = self._kept = 0
        self._bars = shared.progress()
        self._task = self._bars.add_task(unit, total=total)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> Steps:
        """Show the bar, or start to print lines."""
        self._bars.start()
        if self._bars.disable:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop showing."""
        self._end.set()
        self._bars.stop()

    def done(self, text: str, kept: bool = False) -> None:
        """Count a step; `kept` if an earlier run did it, which says nothing of the time left."""
        self._done += 1
        self._kept += kept
        self._doing = text
        self._bars.update(self._task, advance=1, description=text)

    def doing(self, text: str) -> None:
        """Say what is being done once all steps are."""
        self._doing = text
        self._bars.update(self._task, description=text)

    def skip(self, steps: int) -> None:
        """Take steps that are left out off the total, as far as they are still to do."""
        self._total = max(self._total - steps, self._done)
        self._bars.update(self._task, total=self._total)

    def say(self, line: str) -> None:
        """Print a line on stderr, above the bar."""
        self._bars.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def line(self) -> str:
        """Return the state in a line.

        Example: `study: 42 of 362 rows, 1 min 10 s, about 9 min left (house/rope thd-64x16384)`.
        """
        took, measured = self._now() - self._start, self._done - self._kept
        left = took / measured * (self._total - self._done) if measured else None
        about = "" if left is None else f", about {duration(left)} left"
        counted = f"{self._done} of {self._total} {self._unit}"
        return f"study: {counted}, {duration(took, exact=True)}{about} ({self._doing})"

    def _tell(self) -> None:
        while not self._end.wait(self._period):
            print(self.line(), file=sys.stderr, flush=True)


def duration(seconds: float, exact: bool = False) -> str:
    """Return seconds in words: `40 s`, `9 min`, or `9 min 20 s` if that is to be exact."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    return f"{minutes} min {rest} s" if exact else f"{round(seconds / 60)} min"
