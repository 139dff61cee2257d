"""`study bench`: grade and time every solution and peer, and record each row at once."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence

from common import paths, solutions
from common.commands import engines
from common.commands import options as shared
from common.commands.progress import Progress
from common.errors import UserError
from common.solutions import Solution
from common.spec import TIMED


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the device, the engine, the tier and `--missing`."""
    shared.add(parser, *shared.RUNNING)
    engines.add_arguments(parser)
    lacking = "only solutions whose present sources this device has not measured"
    parser.add_argument("--missing", action="store_true", help=lacking)
    parser.add_argument("--tier", choices=TIMED, default="board", help="default: board")


def run(options: argparse.Namespace) -> int:
    """Grade, time and record every solution and peer on the cases of the board or the plots."""
    chosen = shared.chosen(options)
    if options.missing:
        if not (unmeasured := missing(chosen, options)):
            print("study: nothing is missing: this device has measured all of it as it is")
            return 0
        if unmeasured != chosen:
            options.only = ",".join(solution.name for solution in unmeasured)
        chosen = unmeasured
    absent = solutions.peers()[1]
    engine = engines.chosen(options, "bench", chosen)
    from common.engines.benching import Recorded, bench
    from common.records.lines import Counted, Selection

    selection, failed = Selection(options.op, options.only, options.tier), set[str]()
    with Progress("rows") as steps, contextlib.closing(bench(engine, selection, absent)) as events:
        for event in events:
            match event:
                case int() | None:
                    steps.total(event)
                case str():
                    steps.say(f"study: {event}")
                case Counted():
                    steps.doing(f"counting {event.solution} {event.case}")
                case Recorded(path, kept, resumed):
                    went_on = f"went on with an interrupted run; {kept} of its cases were kept"
                    reused = f"{kept} cases of the same sources were kept from an earlier run"
                    if kept:
                        print(f"study: {went_on if resumed else reused}")
                    print(f"study: recorded in {path.relative_to(paths.RESULTS.parent)}")
                case _ if event.too_large:
                    steps.say(shared.left_out(event.op, event.case, event.too_large))
                    steps.skip(2 * sum(solution.op == event.op for solution in chosen))
                case _:
                    for row in event.rows:
                        steps.done(f"{row.solution} {row.case}")
                        if not (row.fine or row.solution in failed):
                            failed.add(row.solution)
                            steps.say(f"{row.solution}: {row.verdict}: {row.reason}")
    return 0


def missing(chosen: Sequence[Solution], options: argparse.Namespace) -> list[Solution]:
    """Return the solutions that this machine's device has not measured as they are now.

    A solution is measured if a finished run has a row with the solution's digest.

    Raises:
        UserError: `--address` selects other machines, or the device does not exist.
    """
    if options.address:
        raise UserError("--missing asks for the device of this machine: leave --address out")
    from common.measure import machine
    from common.records import runs

    folder = machine.results_folder(shared.found_device(options))
    results = runs.read(paths.RESULTS / folder)
    rows = (row for row in results.rows if row.run in results.finished)
    measured = {(row.solution, row.sources) for row in rows if row.tier == options.tier}
    return [solution for solution in chosen if (solution.name, solution.digest) not in measured]
