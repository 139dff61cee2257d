"""`study grade`: print the verdict of every solution on every case of a tier."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from common.commands import engines
from common.commands import options as shared
from common.commands.progress import Progress
from common.commands.result import Anything, Judged, output
from common.solutions import Solution
from common.spec import TIERS

if TYPE_CHECKING:
    from common.engines.engine import CaseResult
    from common.verdicts import Verdict


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the engine, the tier, the sample and the file for the verdicts."""
    shared.add(parser, *shared.RUNNING)
    engines.add_arguments(parser)
    parser.add_argument("--tier", choices=TIERS, default="smoke", help="default: smoke")
    shared.add(parser, "--sample", "--json")


def run(options: argparse.Namespace) -> int:
    """Grade solutions and print a line for each case; return 0 only if no contributor failed."""
    chosen = shared.chosen(options)
    with output(options.json) as written:
        return _grade(chosen, options, written)


def _grade(chosen: Sequence[Solution], options: argparse.Namespace, written: list[Anything]) -> int:
    engine = engines.chosen(options, "grade", chosen)
    from common.commands.answers import coverage

    results: list[CaseResult] = []
    peers = {solution.name for solution in chosen if solution.peer}
    with (
        Progress("cases") as steps,
        engine,
        contextlib.closing(engine.run(engine.tasks())) as events,
    ):
        steps.total(sum(task.pairs for task in engine.tasks()))
        for event in events:
            match event:
                case str():
                    steps.say(f"study: {event}")
                case _ if event.too_large:
                    print(f"study: {event.too_large}")
                    steps.skip(sum(solution.op == event.op for solution in chosen))
                case _:
                    results.append(event)
                    steps.done(f"{event.solution} {event.case}")
                    print(_line(event.verdicts), flush=True)
    verdicts = [verdict for result in results for verdict in result.verdicts]
    # a solution that answers no case of a complete tier has failed
    complete = () if options.sample else verdicts
    silent, remarks = coverage(verdict for verdict in complete if verdict.solution not in peers)
    for solution, remark in remarks.items():
        print(f"{solution} {remark}")
    results.sort(key=attrgetter("op", "case", "solution"))  # not in the order of grading
    written += [Judged.of(verdict) for result in results for verdict in result.verdicts]
    failed = silent | {verdict.solution for verdict in verdicts if not verdict.fine}
    return int(bool(failed - peers))


def _line(verdicts: Sequence[Verdict]) -> str:
    words = [f"{verdicts[0].solution:28} {verdicts[0].case:44}"]
    for verdict in verdicts:
        error = "" if verdict.error is None else f" {verdict.error:.2f}"
        words.append(f"{verdict.verdict}{error}")
    failures = [verdict.tuned for verdict in verdicts if not verdict.fine]
    reasons = [verdict.reason for verdict in verdicts]
    return "  ".join([*words, *filter(None, dict.fromkeys(reasons + failures))])
