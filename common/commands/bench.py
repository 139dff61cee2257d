"""`study bench`: grade and time every solution and peer, and record each row at once."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from common import paths, solutions
from common.commands import engines
from common.commands import options as shared
from common.commands.progress import Progress
from common.errors import UserError
from common.printable import complain
from common.solutions import Solution
from common.spec import TIMED


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the device, the engine, the tier and `--missing`."""
    shared.add(parser, *shared.RUNNING)
    engines.add_arguments(parser)
    parser.add_argument(
        "--missing",
        action="store_true",
        help="only solutions whose present sources this device has not measured",
    )
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

    if line := missing_peers(options, absent):
        complain(line)
    selection, failed = Selection(options.op, options.only, options.tier), set[str]()
    with (
        Progress("rows") as steps,
        contextlib.closing(bench(engine, selection, absent)) as events,
    ):
        for event in events:
            match event:
                case int():
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


def missing_peers(options: argparse.Namespace, absent: Mapping[str, str]) -> str:
    """Return a line on the absent peers of the chosen op and the command that installs them.

    The peers' names are the keys of `absent`.
    """
    peers = solutions.discover(paths.PEERS)
    wanted = {peer.handle for peer in peers if options.op in (None, peer.op)} & absent.keys()
    if options.only or not wanted:
        return ""
    in_nox = Path(sys.prefix) == paths.ROOT / ".nox" / "study"
    command = "nox -s peers" if in_nox else "python -m common.commands.peers"
    return f"not on the board: {', '.join(sorted(wanted))} ({command} installs them)"


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
