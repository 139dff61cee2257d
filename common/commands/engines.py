"""Choose the engine of `bench` and `grade`: this process, or a Ray actor on each GPU."""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from common.commands import options as shared
from common.errors import UserError
from common.printable import complain
from common.processes import VISIBLE, require
from common.solutions import Solution

if TYPE_CHECKING:
    from common.engines.engine import Engine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the address of a Ray cluster."""
    gpus = "use all GPUs of the Ray cluster with this head; default: all of this machine"
    parser.add_argument("--address", metavar="HOST:PORT", help=gpus)


def chosen(
    options: argparse.Namespace,
    command: Literal["bench", "grade"],
    solutions: Sequence[Solution],
    cases: Sequence[str] = (),
) -> Engine:
    """Return the engine for the visible devices or the cluster, not yet started.

    It measures the tier's cases, or those named in `cases`.

    Raises:
        UserError: The device does not exist, or the options contradict each other.
        ModuleNotFoundError: The cluster needs Ray, which is not installed.
    """
    if options.address:
        if options.device == "cpu":
            raise UserError("--address uses all GPUs of a cluster: leave --device cpu out")
        require(["ray"])
    # a cluster's GPUs may be on other nodes
    device = "cuda" if options.address else shared.device(options)
    gpus = visible() if device == "cuda" and not options.address else 0
    ray = bool(options.address) or gpus > 1
    if ray and importlib.util.find_spec("ray") is None:
        ray = False
        complain(f"using only the first of {gpus} GPUs; install Ray to use all (the group"
                 " `ray` of pyproject.toml)")  # fmt: skip
    from common.engines.engine import Engine, Job

    job = Job(
        command=command, device=device, solutions=tuple(solutions), tier=options.tier,
        sample=getattr(options, "sample", None), cases=tuple(cases),
        verbose=options.verbose and command == "grade",
    )  # fmt: skip
    if not ray:
        return Engine(job)
    from common.engines.ray_engine import RayEngine

    return RayEngine(job, options.address, gpus)


def visible() -> int:
    """Return the number of visible GPUs, or of the MIG slices in `CUDA_VISIBLE_DEVICES`.

    A process can use only the first MIG slice. This creates no CUDA context.
    """
    import torch

    slices = os.environ.get(VISIBLE, "").count("MIG-")
    return slices or torch.cuda.device_count()
