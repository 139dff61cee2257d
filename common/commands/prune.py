"""`study prune`: drop raw samples and superseded rows that no board or comparison shows."""

from __future__ import annotations

import argparse
import sys

from common import solutions
from common.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--yes`."""
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(options: argparse.Namespace) -> int:
    """Drop raw samples and superseded rows that no board, plot or comparison needs."""
    from common.board.comparison import needed
    from common.records import runs, writer

    known = {solution.name for solution in solutions.everyone(installed=False)}
    plans = [writer.pruning(results.path, needed(results, known)) for results in runs.read_all()]
    plans = [plan for plan in plans if plan.contents or plan.samples]
    if not plans:
        print("study: there is nothing to prune")
        return 0
    print(*plans, sep="\n")
    if not (options.yes or _agreed()):
        return 1
    for plan in plans:
        plan.carry_out()
    print(f"study: pruned {sum(plan.freed for plan in plans):,} bytes")
    return 0


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise UserError("prune asks before it drops data: run it in a terminal, or give --yes")
    try:
        return input("Drop them? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
