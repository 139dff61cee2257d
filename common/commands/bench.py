"""`study bench`: every solution and peer graded and timed, each row recorded as it comes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from common import paths, solutions
from common.commands import options as shared
from common.errors import UserError
from common.spec import TIMED
from common.verdicts import FINE

if TYPE_CHECKING:
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
    from common.measure import machine, rows

    cases = {op.name: len(cases) for op, cases in tier_cases(chosen, options.tier, device)}
    if not cases:
        raise UserError(f"{options.op or 'what is chosen'} has no cases of tier {options.tier}")
    with shared.progress() as progress:
        failed: set[str] = set()
        task = progress.add_task("bench", total=2 * sum(cases.get(s.op, 0) for s in chosen))

        def seen(row: Record) -> None:
            progress.update(task, advance=1, description=f"{row.solution} {row.case}")
            if row.verdict not in FINE and row.solution not in failed:
                failed.add(row.solution)
                line = f"{row.solution}: {row.verdict}: {row.reason}"
                progress.console.print(line, markup=False)

        kept = rows.bench(chosen, device, _selection(options), absent, seen, options.tier)
    if kept:
        print(f"study: went on with an interrupted run; {kept} of its cases were kept")
    print(f"study: recorded in {paths.RESULTS.name}/{machine.results_file(device)}")
    return 0


def _selection(options: argparse.Namespace) -> str:
    tier = None if options.tier == "board" else options.tier
    given = {"--op": options.op, "--only": options.only, "--tier": tier}
    return " ".join(f"{name} {value}" for name, value in given.items() if value)
