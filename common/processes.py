"""Processes: their packages, cores, GPUs, parents and processor time."""

from __future__ import annotations

import gc
import importlib.util
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The variable with the GPUs that a process may see: numbers, or UUIDs of GPUs or MIG slices."""

NEEDED = ("torch", "triton", "numpy", "msgspec")
"""Packages without which nothing can be graded."""


def require(packages: Iterable[str] = NEEDED) -> None:
    """Raise ModuleNotFoundError for the first of the packages that is not installed."""
    for package in packages:
        if not importlib.util.find_spec(package):
            raise ModuleNotFoundError(name=package)


def import_torch() -> None:
    """Import torch, and the module that the first gradient would otherwise import in 0.4 s."""
    gc.disable()  # no object of torch is garbage, and collection takes a tenth of the import
    import torch.fx.experimental.symbolic_shapes  # noqa: F401

    gc.freeze()
    gc.enable()


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def parents() -> Iterator[tuple[int, int]]:
    """Yield the id of each process and the id of its parent."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # the process has ended
            continue
        yield int(stat.parent.name), parent


def processor_time(pid: int) -> float:
    """Return the processor time of a process's threads in seconds, without its children.

    Return 0 if the process has ended.
    """
    try:
        return time.clock_gettime(~pid << 3 | 2)  # the id that Linux gives to a process's clock
    except OSError:
        return 0.0
