"""The choice of the engine of `bench` and `grade`: this machine's devices, or a cluster's."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from common.commands import gpus
from common.commands import options as shared
from common.errors import UserError
from common.processes import cores
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
        type=address,
        metavar="HOST:PORT",
        help="the head of the Ray cluster; default: one of this machine's own",
    )
    parser.add_argument(
        "--install",
        action="store_true",
        help="have each node of the Ray cluster install the packages first",
    )
    parser.add_argument(
        "--stations",
        type=shared.count,
        metavar="N",
        help="without a GPU, processes, at most one a core; default: this one alone",
    )


def address(text: str) -> str:
    """Return the text if it is a host and a port, for argparse.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    host, _, port = text.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no HOST:PORT")
    return text


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
    if options.install and options.engine != "ray":
        raise UserError("--install is for the nodes of a Ray cluster: add --engine ray")
    if (options.stations or 0) > cores():
        raise UserError(f"--stations {options.stations}: at most as many as cores, here {cores()}")
    ray = options.engine == "ray"
    if ray and not importlib.util.find_spec("ray"):
        raise ModuleNotFoundError(name="ray")
    # the GPUs may be on other nodes
    device = _device_of_cluster(options) if ray else shared.found_device(options)
    if options.stations and (device == "cuda" or ray):
        raise UserError("--stations is for one machine without a GPU: leave it out")
    from common.engines.units import Job, Source

    seen = gpus.visible() if device == "cuda" and not ray else []
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
    if ray:
        from common.engines.ray_engine import RayFleet

        return RayFleet(job, options.address, options.install)
    from common.engines import local

    return local.engine(job, seen, options.stations or 0)


def _device_of_cluster(options: argparse.Namespace) -> Literal["cpu", "cuda"]:
    """Return the device of a cluster's stations: GPUs, unless the options say otherwise.

    Raises:
        UserError: One GPU is asked for.
    """
    if options.device not in (None, "cpu", "cuda"):
        raise UserError(f"--device {options.device} is one GPU: a cluster's are all taken")
    return "cpu" if options.device == "cpu" else "cuda"
