"""Show a command's progress: a bar on a terminal, otherwise a line every half a minute."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Task
    from rich.text import Text

PERIOD = 30.0
"""Seconds between two lines without a terminal."""
ENOUGH = 0.1
"""The share of done steps from which on their mean time tells the time left."""


class Progress:
    """A context manager that shows the done steps, all steps and the time left."""

    def __init__(self, unit: str, total: int | None = None, transient: bool = False) -> None:
        """Start the clock; output to the bar's console is printed above the bar.

        A bar would be drawn over lines that `| less` shows, so that there is none without a
        terminal on stdout.

        Args:
            unit: The name of the steps, such as `rows`, or of a work without steps.
            total: The number of steps, None if it is unknown; a work of no step is not shown.
            transient: Whether the bar disappears at the end, as what is printed says how it went.
        """
        from rich import progress
        from rich.console import Console
        from rich.table import Column

        class Left(progress.TimeRemainingColumn):
            def render(self, task: Task) -> Text:
                known = SimpleNamespace(total=task.total, time_remaining=seconds_left(task))
                return super().render(known)  # type: ignore[arg-type]

        self._unit, self._doing = unit, "starting"
        console = Console(stderr=True)
        whole, cut = Column(no_wrap=True), Column(no_wrap=True, overflow="ellipsis", ratio=1)
        self._bars = progress.Progress(
            progress.TextColumn("{task.description}", table_column=cut),
            progress.BarColumn(bar_width=20),
            progress.MofNCompleteColumn(table_column=whole),
            progress.TimeElapsedColumn(table_column=whole),
            Left(table_column=whole),
            console=console,
            disable=not (console.is_terminal and sys.stdout.isatty()),
            expand=True,
            transient=transient,
        )
        self._bars.add_task(unit, total=total, visible=total != 0)
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
        """Count the named step."""
        self._doing = text
        self._update(advance=1, description=text)

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

    def total(self, steps: int | None) -> None:
        """Set the number of steps; None for further work whose time is unknown."""
        self._task.total, self._task.finished_time = steps, None
        self._update()

    def line(self) -> str:
        """Return the state as a line.

        Example: `study: 42 of 362 rows, 1 min 10 s, about 9 min left (house/rope thd-64x16384)`.
        """
        done, total, left = self._task.completed, self._task.total, seconds_left(self._task)
        of_all = "" if total is None else f"of {total:.0f} "
        counted = f"{done:.0f} {of_all}" if done or of_all else ""
        about = f", about {duration(left)} left" if left else ""
        took = duration(self._task.elapsed or 0.0, exact=True)
        return f"study: {counted}{self._unit}, {took}{about} ({self._doing})"

    def _update(self, **fields: object) -> None:
        self._bars.update(self._task.id, **fields)  # type: ignore[arg-type]

    def _print_lines(self) -> None:
        while not self._end.wait(PERIOD):
            print(self.line(), file=sys.stderr, flush=True)


def seconds_left(task: Task) -> float | None:
    """Return the time that the rest takes by the mean time of a step; None before ENOUGH are done.

    A step that is late makes it longer.
    """
    if not task.total or task.completed < ENOUGH * task.total:
        return None
    return (task.total - task.completed) * (task.elapsed or 0.0) / task.completed


def duration(seconds: float, exact: bool = False) -> str:
    """Return seconds as `40 s`, `9 min`, or with `exact` `9 min 20 s`."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    return f"{minutes} min {rest} s" if exact else f"{round(seconds / 60)} min"
