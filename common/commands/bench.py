"""`study bench`: grade and time every solution and peer, and record each row at once.

With `--case`, the cases are those that the user names, and nothing is recorded.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common import paths, solutions
from common.commands import engines
from common.commands import options as shared
from common.commands.progress import Progress
from common.errors import UserError
from common.solutions import Solution
from common.spec import TIMED

if TYPE_CHECKING:
    from common.engines.engine import Engine
    from common.records.lines import Record
    from common.records.runs import Results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the device, the engine, the tier, `--case` and `--missing`."""
    shared.add(parser, *shared.RUNNING)
    engines.add_arguments(parser)
    lacking = "only solutions whose present sources this device has not measured"
    parser.add_argument("--missing", action="store_true", help=lacking)
    parser.add_argument("--tier", choices=TIMED, default="board", help="default: board")
    own = "these cases alone, of any sizes and options that a name says; records nothing"
    parser.add_argument("--case", metavar="NAME[,NAME]", help=own)


def run(options: argparse.Namespace) -> int:
    """Grade, time and record every solution and peer on the cases of the board or the plots."""
    chosen = shared.chosen(options)
    if options.case is not None:
        measure_named(options, chosen, options.case.split(","))
        return 0
    if options.missing:
        if not (unmeasured := missing(chosen, options)):
            print("study: nothing is missing: this device has measured all of it as it is")
            return 0
        if unmeasured != chosen:
            options.only = ",".join(solution.name for solution in unmeasured)
        chosen = unmeasured
    path = _measure(engines.chosen(options, "bench", chosen), options)
    print(f"study: recorded in {path.relative_to(paths.RESULTS.parent)}")
    return 0


def _measure(engine: Engine, options: argparse.Namespace, results: Path | None = None) -> Path:
    """Run an engine's job with its progress on stderr, and return the path of its record."""
    from common.engines.benching import Recording, bench
    from common.records.lines import Counted, Selection

    selection, failed = Selection(options.op, options.only, engine.job.tier), set[str]()
    path, absent = Path(), solutions.peers()[1]
    events = bench(engine, selection, absent, results)
    with Progress("rows") as steps, contextlib.closing(events):
        for event in events:
            match event:
                case int() | None:
                    steps.total(event)
                case str():
                    steps.say(f"study: {event}")
                case Counted():
                    steps.doing(f"counting {event.solution} {event.case}")
                case Recording(lines=lines, kept=kept):
                    path = lines.path
                    if kept:
                        print(f"study: {len(kept)} cases of the same sources stand from before")
                case _ if event.too_large:
                    steps.say(f"study: {event.too_large}")
                    steps.skip(2 * sum(each.op == event.op for each in engine.job.solutions))
                case _:
                    for row in event.rows:
                        steps.done(f"{row.solution} {row.case}")
                        if not (row.fine or row.solution in failed):
                            failed.add(row.solution)
                            steps.say(f"{row.solution}: {row.verdict}: {row.reason}")
    return path


def measured(
    options: argparse.Namespace, chosen: Sequence[Solution], names: Sequence[str] = ()
) -> Results:
    """Measure the board's cases, or those of any names that an op can say, and record nothing.

    The options are those of `bench`, or of a command that has no tier and no cluster.

    Raises:
        UserError: A name says no case of the solutions' ops.
    """
    from common.records import runs

    given = argparse.Namespace(**{"tier": "board", "address": None} | vars(options))
    engine = engines.chosen(given, "bench", chosen, names)
    with tempfile.TemporaryDirectory() as folder:  # no board is drawn from it
        return runs.read(_measure(engine, given, Path(folder)).parent)


def measure_named(
    options: argparse.Namespace, chosen: Sequence[Solution], names: Sequence[str]
) -> Sequence[Record]:
    """Measure cases of any sizes, print a table of each, and return the rows; see `measured`.

    Without a GPU the times are modelled.
    """
    from common.board import terminal
    from common.board.devices import about_solutions, ranked

    results = measured(options, chosen, names)
    device = ranked(results, about_solutions({solution.name for solution in chosen}))
    terminal.show_cases(device, terminal.console())
    return device.rows


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

    folder = machine.results_folder(shared.device(options))
    results = runs.read(paths.RESULTS / folder)
    rows = (row for row in results.rows if row.run in results.finished)
    measured = {(row.solution, row.sources) for row in rows if row.tier == options.tier}
    return [solution for solution in chosen if (solution.name, solution.digest) not in measured]
