"""The choice of the engine of `bench` and `grade`: this machine's devices, or a cluster's."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from common.commands import gpus
from common.commands import options as shared
from common.errors import UserError
from common.solutions import Solution

if TYPE_CHECKING:
    from common.engines.engine import Engine


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the engine and where it is."""
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="local: all GPUs of this machine (default); ray: all of a Ray cluster",
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="the head of the Ray cluster; default: one of this machine's own",
    )
    parser.add_argument(
        "--stations",
        type=shared.count,
        metavar="N",
        help="without a GPU, processes that share the cores; default: this one alone",
    )


def chosen(
    options: argparse.Namespace,
    command: Literal["bench", "grade"],
    solutions: Sequence[Solution],
) -> Engine:
    """Return the engine that the options choose, not yet started.

    Raises:
        UserError: The device is not there, or the options do not go together.
    """
    if options.address and options.engine != "ray":
        raise UserError("--address is of a Ray cluster: add --engine ray")
    device = shared.found_device(options)
    if options.stations and device == "cuda":
        raise UserError("--stations is for machines without a GPU: there each GPU has one")
    from common.engines import local
    from common.engines.units import Job, Source

    seen = gpus.visible() if device == "cuda" else []
    job = Job(
        command=command,
        device=device,
        sources=tuple(map(Source.of, solutions)),
        tier=options.tier,
        sample=getattr(options, "sample", None),
        memory=options.memory,
        verbose=options.verbose and command == "grade",
        pace=command == "bench" and len(seen) > 1,
    )
    return local.engine(job, seen, options.stations or 0)
