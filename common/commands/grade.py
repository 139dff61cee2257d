"""`study grade`: the verdict of every solution on every case of a tier."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common.commands import options as shared
from common.commands.coverage import Coverage
from common.solutions import Solution
from common.spec import TIERS

if TYPE_CHECKING:
    from common.verdicts import Verdict


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tier, the sample and the file for the verdicts."""
    shared.running_arguments(parser)
    parser.add_argument("--tier", choices=TIERS, default="smoke", help="default: smoke")
    shared.sample_argument(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts to this file")


def run(options: argparse.Namespace) -> int:
    """Grade solutions, one line per solution and case; exit 0 only if no contributor failed."""
    chosen = shared.chosen(options)
    target = options.json and shared.writable(options.json)
    device = shared.device(options)
    verdicts: list[Verdict] = []
    coverage = Coverage()
    peers = {solution.name for solution in chosen if solution.peer}
    for found in _graded(chosen, device, options):
        print(_line(found), flush=True)
        verdicts += found
        if not options.sample and found[0].solution not in peers:
            coverage.add(found)  # who answers nothing of a whole tier has failed
    for line in coverage.lines():
        print(line)
    if target:
        rows = [verdict.json for verdict in verdicts]
        target.write_text(json.dumps(rows, indent=1, allow_nan=False) + "\n")
    failed = coverage.silent | {v.solution for v in verdicts if not v.fine}
    return int(bool(failed - peers))


def _graded(
    chosen: Sequence[Solution], device: str, options: argparse.Namespace
) -> Iterator[list[Verdict]]:
    """Yield the verdicts of each solution and case, one for each direction that the case has."""
    from common.grading.compiling import Compiler
    from common.grading.graded import TooLarge
    from common.grading.memory import Memory
    from common.grading.sweep import Sweep
    from common.grading.tiers import repeats, tier_cases

    todo = list(tier_cases(chosen, options.tier, device, options.sample, options.memory))
    memory = Memory.of(device, options.memory)
    again, quiet = repeats(options.tier, device), not options.verbose
    with (
        Compiler(device, quiet) as compiler,
        Sweep(device, quiet, overlap=True, memory=memory) as sweep,
    ):
        found = (sweep.grade(op, cases, chosen, repeats=again) for op, cases in todo)
        for graded in compiler.behind(itertools.chain.from_iterable(found)):
            if isinstance(graded, TooLarge):
                print(shared.left_out(graded.op.name, graded.case.name, graded.reason))
            else:
                yield list(graded.verdicts.values())


def _line(found: Sequence[Verdict]) -> str:
    words = [f"{found[0].solution:28} {found[0].case:44}"]
    for verdict in found:
        error = "" if verdict.error is None else f" {verdict.error:.2f}"
        words.append(f"{verdict.verdict}{error}")
    reasons = dict.fromkeys(verdict.reason for verdict in found if verdict.reason)
    return "  ".join([*words, *reasons])
