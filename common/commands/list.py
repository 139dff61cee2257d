"""`study list`: list every solution and peer with its note."""

from __future__ import annotations

import argparse

from common import solutions
from common.commands import options as shared


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    shared.add(parser, "--json")


def run(options: argparse.Namespace) -> int:
    """List every solution and peer with its note."""
    chosen = shared.chosen(options)
    if options.json:
        from common.commands.result import Listed, output  # they need packages, a list does not

        with output(options.json) as written:
            written += [Listed(solution=each.name, op=each.op, peer=each.peer, note=each.note)
                        for each in chosen]  # fmt: skip
        return 0
    width = max(len(solution.name) for solution in chosen)
    for solution in chosen:
        print(f"{solution.name:{width}}  {solution.note}")
    for peer, reason in solutions.peers()[1].items():
        print(f"{peer:{width}}  absent: {reason}")
    return 0
