"""Show a command's progress: a bar on a terminal, otherwise a line every half a minute."""

from __future__ import annotations

import contextlib
import datetime
import os
import stat
import sys
import threading

PERIOD = 30.0
"""Seconds between two lines if stderr is not a terminal."""
ENOUGH = 0.05
"""The share of done steps from which the time left is shown."""
UNKNOWN = "-:--:--"


class Progress:
    """A context manager that shows the done steps, all steps and the time left."""

    def __init__(self, unit: str, total: int | None = None) -> None:
        """Start the clock; output to the bar's console is printed above the bar.

        Args:
            unit: The name of the steps, such as `rows`, or of a work without steps.
            total: The number of steps, None if it is unknown; a work of no step is not shown.
        """
        from rich import progress
        from rich.console import Console
        from rich.table import Column

        self._unit, self._doing = unit, "starting"
        console = Console(stderr=True)
        # on a narrow terminal only the description is cut
        bar = 10 if console.width < 120 else 40
        rest = max(console.width - bar - 32, 10)
        whole, cut = Column(no_wrap=True), Column(no_wrap=True, overflow="ellipsis", max_width=rest)
        self._bars = progress.Progress(
            progress.TextColumn("{task.description}", table_column=cut),
            progress.BarColumn(bar_width=bar),
            progress.MofNCompleteColumn(table_column=whole),
            progress.TimeElapsedColumn(table_column=whole),
            progress.TextColumn("{task.fields[left]}", table_column=whole),
            console=console,
            disable=not console.is_terminal or _is_piped(),
            redirect_stdout=sys.stdout.isatty(),  # a redirect would take the lines from a file
        )
        self._bars.add_task(unit, total=total, visible=total != 0, left=UNKNOWN)
        (self._task,) = self._bars.tasks
        self._end = threading.Event()

    def __enter__(self) -> Progress:
        """Show the bar, or start to print lines."""
        self._bars.start()
        if self._bars.disable:
            threading.Thread(target=self._print_lines, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the display; a full bar is labelled with the unit instead of the last step.

        A bar without a done step disappears.
        """
        self._end.set()
        full = self._task.completed == self._task.total
        self._update(description=self._unit if full else None, visible=self._task.completed > 0)
        self._bars.stop()

    def done(self, text: str) -> None:
        """Count a step with this name."""
        self._doing = text
        self._update(advance=1)
        left = UNKNOWN if self._left is None else str(datetime.timedelta(seconds=round(self._left)))
        self._update(description=text, left=left)

    def doing(self, text: str) -> None:
        """Show an activity that is not a step."""
        self._doing = text
        self._update(description=text)

    def skip(self, steps: int) -> None:
        """Subtract left-out steps from the total, but keep the total at least at the done steps."""
        self.total(max(int(self._task.total or 0) - steps, int(self._task.completed)))

    def say(self, line: str) -> None:
        """Print a line on stderr, above the bar."""
        self._bars.console.print(line, markup=False, highlight=False, soft_wrap=self._bars.disable)

    def total(self, steps: int) -> None:
        """Set the number of steps."""
        self._update(total=steps)

    def line(self) -> str:
        """Return the state as a line.

        Example: `study: 42 of 362 rows, 1 min 10 s, about 9 min left (house/rope thd-64x16384)`.
        """
        total = self._task.total
        counted = "" if total is None else f"{self._task.completed:.0f} of {total:.0f} "
        about = "" if self._left is None else f", about {duration(self._left)} left"
        took = duration(self._task.elapsed or 0.0, exact=True)
        return f"study: {counted}{self._unit}, {took}{about} ({self._doing})"

    @property
    def _left(self) -> float | None:
        """The seconds left; None while few steps are done, since steps end in groups.

        For example, the first case of `bench` is done by all solutions at once.
        """
        done, rest = self._task.completed, (self._task.total or 0) - self._task.completed
        if rest <= 0 or done < ENOUGH * (done + rest):
            return None
        return (self._task.elapsed or 0.0) / done * rest

    def _update(self, **fields: object) -> None:
        self._bars.update(self._task.id, **fields)  # type: ignore[arg-type]

    def _print_lines(self) -> None:
        while not self._end.wait(PERIOD):
            print(self.line(), file=sys.stderr, flush=True)


def _is_piped() -> bool:
    """Return whether stdout is a pipe: a bar would be drawn over the lines of `| less`."""
    with contextlib.suppress(OSError):  # it is closed
        return stat.S_ISFIFO(os.fstat(1).st_mode)
    return False


def duration(seconds: float, exact: bool = False) -> str:
    """Return seconds as `40 s`, `9 min`, or with `exact` `9 min 20 s`."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    return f"{minutes} min {rest} s" if exact else f"{round(seconds / 60)} min"
