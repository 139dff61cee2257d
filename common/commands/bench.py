"""`study bench`: every solution and peer graded and timed, each row recorded as it comes."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING

from common import paths, solutions
from common.commands import options as shared
from common.commands.steps import Steps
from common.errors import UserError
from common.spec import TIMED

if TYPE_CHECKING:
    from common.records.lines import Record


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the device and the tier."""
    shared.running_arguments(parser)
    parser.add_argument("--tier", choices=TIMED, default="board", help="default: board")


def run(options: argparse.Namespace) -> int:
    """Grade and time every solution and peer on the board's cases, or the plots'; record each."""
    chosen, absent = shared.chosen(options), solutions.peers()[1]
    device = shared.device(options)
    from common.grading.tiers import tier_cases
    from common.measure.recording import Kept, Recorded, bench
    from common.records.fields import Selection
    from common.records.lines import Counted, LeftOut

    cases = {
        op.name: len(cases)
        for op, cases in tier_cases(chosen, options.tier, device, budget=options.memory)
    }
    if not cases:
        raise UserError(f"{options.op or 'what is chosen'} has no cases of tier {options.tier}")
    selection = Selection(options.op, options.only, options.tier)
    rows, failures = 2 * sum(cases.get(each.op, 0) for each in chosen), _Failures()
    with (
        Steps("rows", rows) as steps,
        contextlib.closing(bench(chosen, device, selection, absent, options.memory)) as events,
    ):
        if line := shared.missing_peers(options, absent):
            steps.say(line)
        for event in events:
            if isinstance(event, Recorded):
                ended = event
                continue
            if isinstance(event, LeftOut):
                steps.say(shared.left_out(event.op, event.case, event.reason))
                steps.skip(2 * sum(each.op == event.op for each in chosen))
                continue
            if isinstance(event, Counted):
                steps.doing(f"counting {event.solution} {event.case}")
                continue
            steps.done(f"{event.row.solution} {event.row.case}", kept=isinstance(event, Kept))
            if line := failures.first(event.row):
                steps.say(line)
    if ended.kept and ended.resumed:
        print(f"study: went on with an interrupted run; {ended.kept} of its cases were kept")
    elif ended.kept:
        print(f"study: {ended.kept} cases of the same sources were kept from an earlier run")
    print(f"study: recorded in {ended.path.relative_to(paths.RESULTS.parent)}")
    return 0


class _Failures:
    """The solutions that failed."""

    def __init__(self) -> None:
        self._failed: set[str] = set()

    def first(self, row: Record) -> str | None:
        """Return a line for the first failure of each solution."""
        if row.fine or row.solution in self._failed:
            return None
        self._failed.add(row.solution)
        return f"{row.solution}: {row.verdict}: {row.reason}"
