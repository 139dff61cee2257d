"""`study list`: list every solution and peer with its note."""

from __future__ import annotations

import argparse

from common import solutions
from common.commands import options as shared
from common.commands.result import Listed, output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    shared.add(parser, "--json")


def run(options: argparse.Namespace) -> int:
    """List every solution and peer with its note."""
    chosen = shared.chosen(options)
    width = max(len(solution.name) for solution in chosen)
    with output(options.json) as written:
        for each in chosen:
            print(f"{each.name:{width}}  {each.note}")
            written.add(Listed(solution=each.name, op=each.op, peer=each.peer, note=each.note))
        for peer, reason in solutions.peers()[1].items():
            print(f"{peer:{width}}  absent: {reason}")
    return 0
