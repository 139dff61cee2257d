"""`study bench`: every solution and peer graded and timed, each row recorded as it comes."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING

from common import paths, solutions
from common.commands import options as shared
from common.errors import UserError
from common.spec import TIMED

if TYPE_CHECKING:
    from rich.progress import Progress

    from common.records.runs import Record


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the device and the tier."""
    shared.running_arguments(parser)
    parser.add_argument("--tier", choices=TIMED, default="board", help="default: board")


def run(options: argparse.Namespace) -> int:
    """Grade and time every solution and peer on the board's cases, or the plots'; record each."""
    chosen, absent = shared.chosen(options), solutions.peers()[1]
    device = shared.device(options)
    from common.grading.sweep import tier_cases
    from common.measure.recording import Recorded, bench
    from common.records.fields import Selection

    cases = {op.name: len(cases) for op, cases in tier_cases(chosen, options.tier, device)}
    if not cases:
        raise UserError(f"{options.op or 'what is chosen'} has no cases of tier {options.tier}")
    selection = Selection(options.op, options.only, options.tier)
    with (
        shared.progress() as progress,
        contextlib.closing(bench(chosen, device, selection, absent)) as events,
    ):
        if line := shared.missing_peers(options, absent):
            progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
        bars = _Bars(progress, rows=2 * sum(cases.get(s.op, 0) for s in chosen))
        for event in events:
            if isinstance(event, Recorded):
                ended = event
            else:
                bars.show(event.row)
    if ended.kept:
        print(f"study: went on with an interrupted run; {ended.kept} of its cases were kept")
    print(f"study: recorded in {ended.path.relative_to(paths.RESULTS.parent)}")
    return 0


class _Bars:
    """The progress of a run, and the first failure of each solution above it."""

    def __init__(self, progress: Progress, rows: int) -> None:
        self._progress = progress
        self._task = progress.add_task("bench", total=rows)
        self._failed: set[str] = set()

    def show(self, row: Record) -> None:
        """Advance by one row."""
        self._progress.update(self._task, advance=1, description=f"{row.solution} {row.case}")
        if not row.fine and row.solution not in self._failed:
            self._failed.add(row.solution)
            line = f"{row.solution}: {row.verdict}: {row.reason}"
            self._progress.console.print(line, markup=False)
