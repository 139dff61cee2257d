"""Choose the engine of `bench` and `grade`: this process, or a Ray actor on each GPU."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from common.commands import gpus
from common.commands import options as shared
from common.errors import UserError
from common.processes import cores
from common.solutions import Solution

if TYPE_CHECKING:
    from common.engines.engine import Engine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose the engine."""
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        help="local: one device, in this process; ray: all GPUs of this machine, or of a cluster;"
        " default: ray where several GPUs are visible",
    )
    parser.add_argument(
        "--address",
        type=address,
        metavar="HOST:PORT",
        help="the head of the Ray cluster; default: start a cluster of this machine",
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
        help="start N processes through Ray, which share this machine's cores; for grade, N on"
        " each GPU",
    )


def address(text: str) -> str:
    """Return the text if it is HOST:PORT, for argparse.

    Raises:
        argparse.ArgumentTypeError: The text is no HOST:PORT.
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
        UserError: The device does not exist, or the options contradict each other.
        ModuleNotFoundError: The options need Ray, which is not installed.
    """
    ray, executors = options.engine == "ray", options.stations or 0
    if options.address and not ray:
        raise UserError("--address is of a Ray cluster: add --engine ray")
    if options.install and not ray:
        raise UserError("--install is for the nodes of a Ray cluster: add --engine ray")
    if executors and (options.address or options.engine == "local"):
        raise UserError(
            "--stations starts Ray on this machine: leave --address and --engine local out"
        )
    if executors > cores():
        raise UserError(f"--stations {executors}: at most as many as cores, here {cores()}")
    ray_installed = importlib.util.find_spec("ray") is not None
    if (ray or executors) and not ray_installed:
        raise ModuleNotFoundError(name="ray")
    # a cluster's GPUs may be on other nodes
    device = _device_of_cluster(options) if ray else shared.found_device(options)
    if executors and device == "cuda" and command == "bench":
        raise UserError("--stations would disturb a GPU's times: it is for grade")
    visible = gpus.visible() if device == "cuda" and not options.address else []
    from common.engines.engine import Job, LocalEngine

    job = Job(
        command=command,
        device=device,
        solutions=tuple(solutions),
        tier=options.tier,
        sample=getattr(options, "sample", None),
        memory=options.memory,
        verbose=options.verbose and command == "grade",
    )
    several_gpus = len(visible) > 1 and options.engine is None
    if several_gpus and not ray_installed:
        print(f"study: using only the first of {len(visible)} GPUs; install Ray to use all (the"
              " group `ray` of pyproject.toml)", file=sys.stderr)  # fmt: skip
    if not (ray or executors or (several_gpus and ray_installed)):
        return LocalEngine(job)
    from common.engines.ray_engine import RayEngine

    return RayEngine(job, options.address, options.install, len(visible), executors or 1)


def _device_of_cluster(options: argparse.Namespace) -> Literal["cpu", "cuda"]:
    """Return the device of a cluster's executors: always GPUs.

    Raises:
        UserError: `--device` selects the CPU or a single GPU.
    """
    if options.device == "cpu":
        raise UserError("--engine ray needs GPUs: leave --device cpu out, or take --engine local")
    if options.device not in (None, "cuda"):
        raise UserError(
            f"--device {options.device} selects one GPU: a cluster uses all, leave it out"
        )
    return "cuda"
