"""`study sanitize`: run sanitizers, which find errors that guard bands and two runs miss."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from common.commands import options as shared
from common.errors import UserError
from common.solutions import Solution
from common.spec import Case, Op
from common.tools import sanitizers

SAMPLE = 12
"""The default number of smoke cases of an op; NVIDIA's tools slow a kernel down fifty times."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tool and the sample."""
    shared.running_arguments(parser)
    parser.add_argument(
        "--tool",
        choices=(*sanitizers.TOOLS, sanitizers.SYMBOLIC),
        help="default: NVIDIA's three",
    )
    shared.sample_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Run sanitizers over smoke cases: NVIDIA's on a GPU, or triton-viz's anywhere."""
    chosen = shared.contributors(options)
    device, sample = shared.device(options), options.sample
    if options.tool != sanitizers.SYMBOLIC:
        if device != "cuda":
            raise UserError(f"sanitize needs a GPU, except with --tool {sanitizers.SYMBOLIC}")
        sample = sample or SAMPLE
    from common.grading.tiers import tier_cases

    cases = tier_cases(chosen, "smoke", device, sample, options.memory)
    tools = [options.tool] if options.tool else sanitizers.TOOLS
    return int(not sanitize(chosen, cases, tools, options.verbose))


def sanitize(
    chosen: Sequence[Solution],
    cases_of: Iterable[tuple[Op[Any], Sequence[Case]]],
    tools: Sequence[str],
    verbose: bool = False,
) -> bool:
    """Print each tool's findings in each solution; return whether there is no finding.

    Raises:
        UserError: A tool is not installed or does not run on this machine.
    """
    clean = True
    for op, cases in cases_of:
        for solution in (solution for solution in chosen if solution.op == op.name):
            for tool in tools:
                clean = sanitizers.sanitize(tool, solution, cases, verbose) and clean
    return clean
