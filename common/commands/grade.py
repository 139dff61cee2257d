"""`study grade`: the verdict of every solution on every case of a tier."""

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
    engines.arguments(parser)
    parser.add_argument("--tier", choices=TIERS, default="smoke", help="default: smoke")
    shared.sample_argument(parser)
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the verdicts to this file; an interrupted run goes on from FILE.part",
    )


def run(options: argparse.Namespace) -> int:
    """Grade solutions, one line per solution and case; exit 0 only if no contributor failed."""
    chosen = shared.chosen(options)
    target = options.json and shared.writable(options.json)
    engine = engines.chosen(options, "grade", chosen)
    from common import files
    from common.commands.report import coverage
    from common.engines.grading import part_of

    found: list[Found] = []
    peers = {solution.name for solution in chosen if solution.peer}
    for each in _graded(engine, target):
        found.append(each)
        if not each.kept:
            print(_line(each.verdicts), flush=True)
    # who answers nothing of a whole tier has failed
    whole = [v for each in found for v in each.verdicts if not options.sample]
    silent, lines = coverage(each for each in whole if each.solution not in peers)
    for line in lines:
        print(line)
    if target:
        rows = _rows(found, engine)
        text = json.dumps(rows, indent=1, allow_nan=False) + "\n"
        files.replace(target, text.encode())
        part_of(target).unlink(missing_ok=True)
    failed = silent | {v.solution for each in found for v in each.verdicts if not v.fine}
    return int(bool(failed - peers))


def _graded(engine: Engine, target: Path | None) -> Iterator[Found]:
    """Yield the verdicts of each solution and case, and show how far they are."""
    from common.engines.engine import TooLargeAnswer
    from common.engines.grading import Begins, Found, grade_all

    with (
        Progress("cases", 0) as steps,
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


def _rows(found: Sequence[Found], engine: Engine) -> list[dict[str, Any]]:
    """Return the verdicts as JSON data in the order of the cases, whichever came first.

    Where there are several kinds of devices, `device` names the kind of each.
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
    order = {each.name: place for place, each in enumerate(engine.job.solutions)}

    def key(each: Found) -> tuple[int, int]:
        first = each.verdicts[0]
        # a kind that has left the cluster, or a case that no longer fits, stands at the end
        place = places.get((each.kind, first.op, first.case), len(places))
        return place, order[first.solution]

    several = len({*engine.kinds, *(each.kind for each in found)}) > 1
    return [
        verdict.json | ({"device": each.kind} if several else {})
        for each in sorted(found, key=key)
        for verdict in each.verdicts
    ]


def _line(found: Sequence[Verdict]) -> str:
    words = [f"{found[0].solution:28} {found[0].case:44}"]
    for verdict in found:
        error = "" if verdict.error is None else f" {verdict.error:.2f}"
        words.append(f"{verdict.verdict}{error}")
    reasons = dict.fromkeys(verdict.reason for verdict in found if verdict.reason)
    return "  ".join([*words, *reasons])
