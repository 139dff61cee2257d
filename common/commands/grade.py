"""`study grade`: print the verdict of every solution on every case of a tier."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.commands import engines
from common.commands import options as shared
from common.commands.progress import Progress
from common.spec import TIERS

if TYPE_CHECKING:
    from common.engines.engine import Engine
    from common.engines.grading import Found
    from common.verdicts import Verdict


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the engine, the tier, the sample and the file for the verdicts."""
    shared.running_arguments(parser)
    engines.add_arguments(parser)
    parser.add_argument("--tier", choices=TIERS, default="smoke", help="default: smoke")
    shared.sample_argument(parser)
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the verdicts to this file; an interrupted run goes on from FILE.part",
    )


def run(options: argparse.Namespace) -> int:
    """Grade solutions and print a line for each case; return 0 only if no contributor failed."""
    chosen = shared.chosen(options)
    target = options.json and shared.writable(options.json)
    engine = engines.chosen(options, "grade", chosen)
    from common import files
    from common.commands.report import coverage
    from common.engines.grading import part_of

    graded_cases: list[Found] = []
    peers = {solution.name for solution in chosen if solution.peer}
    for graded in _graded(engine, target):
        graded_cases.append(graded)
        if not graded.kept:
            print(_line(graded.verdicts), flush=True)
    verdicts = [verdict for graded in graded_cases for verdict in graded.verdicts]
    # a solution that answers no case of a complete tier has failed
    complete = () if options.sample else verdicts
    silent, lines = coverage(verdict for verdict in complete if verdict.solution not in peers)
    for line in lines:
        print(line)
    if target:
        rows = _rows(graded_cases, engine)
        text = json.dumps(rows, indent=1, allow_nan=False) + "\n"
        files.replace(target, text.encode())
        part_of(target).unlink(missing_ok=True)
    failed = silent | {verdict.solution for verdict in verdicts if not verdict.fine}
    return int(bool(failed - peers))


def _graded(engine: Engine, target: Path | None) -> Iterator[Found]:
    """Yield the verdicts of each solution and case, and show the progress."""
    from common.engines.engine import TooLargeAnswer
    from common.engines.grading import Begins, Found, grade_all

    with (
        Progress("cases") as steps,
        contextlib.closing(grade_all(engine, target)) as events,
    ):
        steps.busy = lambda: engine.busy
        for event in events:
            match event:
                case Begins(cases, kept, notes):
                    steps.total(cases)
                    for note in [*notes, *[f"went on with {kept} graded cases"] * bool(kept)]:
                        steps.say(f"study: {note}")
                case TooLargeAnswer(op, case, reason):
                    print(shared.left_out(op, case, reason))
                    steps.skip(sum(solution.op == op for solution in engine.job.solutions))
                case Found():
                    first = event.verdicts[0]
                    verdicts = [verdict.verdict for verdict in event.verdicts]
                    steps.done(f"{first.solution} {first.case}", event.kept, verdicts)
                    yield event
                case str():
                    steps.say(f"study: {event}")


def _rows(graded_cases: Sequence[Found], engine: Engine) -> list[dict[str, Any]]:
    """Return the verdicts as JSON data in the order of the cases, not of grading.

    With several kinds of devices, a row has its kind as `device`.
    """
    places = {
        (kind, op, case): place
        for place, (kind, op, case) in enumerate(
            (kind, op, case)
            for kind in engine.kinds
            for op, known in engine.cases(kind).items()
            for case in known
        )
    }
    order = {solution.name: place for place, solution in enumerate(engine.job.solutions)}

    def key(graded: Found) -> tuple[int, int]:
        first = graded.verdicts[0]
        # kinds that have left the cluster, and cases that no longer fit, come last
        place = places.get((graded.kind, first.op, first.case), len(places))
        return place, order[first.solution]

    several_kinds = len({*engine.kinds, *(graded.kind for graded in graded_cases)}) > 1
    return [
        verdict.json | ({"device": graded.kind} if several_kinds else {})
        for graded in sorted(graded_cases, key=key)
        for verdict in graded.verdicts
    ]


def _line(verdicts: Sequence[Verdict]) -> str:
    words = [f"{verdicts[0].solution:28} {verdicts[0].case:44}"]
    for verdict in verdicts:
        error = "" if verdict.error is None else f" {verdict.error:.2f}"
        words.append(f"{verdict.verdict}{error}")
    failures = [verdict.tuned for verdict in verdicts if not verdict.fine]
    reasons = [verdict.reason for verdict in verdicts]
    return "  ".join([*words, *filter(None, dict.fromkeys(reasons + failures))])
