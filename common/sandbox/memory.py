"""GPU memory of one process, as torch's allocator counts it.

Memory that native code takes from CUDA itself, or from Triton's own allocator, is not counted.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

import torch

YOUNG = 1
"""The generation up to which garbage is collected: the cycles that hold results are young."""


@dataclass(frozen=True)
class Taken:
    """Bytes that a call took beyond those allocated before it."""

    peak: int
    kept: int
    """Those that are still allocated after it."""


def taken(run: Callable[[], object]) -> Taken | None:
    """Run a call; return the memory that it took, or None on a CPU.

    Sizes are those that were asked for: the allocator rounds them up by up to a megabyte, more or
    less of it by chance.
    """
    if not torch.cuda.is_available():
        run()
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = _requested("current")
    run()
    return Taken(_requested("peak") - before, _requested("current") - before)


def _requested(what: str) -> int:
    return int(torch.cuda.memory_stats()[f"requested_bytes.all.{what}"])


def available() -> int:
    """Return the bytes that this process can still allocate."""
    free, total = torch.cuda.mem_get_info()
    reserved = torch.cuda.memory_reserved()
    allowed = int(torch.cuda.get_per_process_memory_fraction() * total) - reserved
    return max(min(free, allowed), 0) + reserved - torch.cuda.memory_allocated()


def synchronize() -> None:
    """Wait for the GPU's work, if there is a GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def give_back() -> None:
    """Return the memory that torch keeps for later to the GPU, where other processes need it."""
    gc.collect(YOUNG)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def twice_the_l2() -> torch.Tensor:
    """Return memory to write between two calls, so that the second finds the L2 cache cold."""
    if not torch.cuda.is_available():
        return torch.empty(0)
    size = torch.cuda.get_device_properties().L2_cache_size
    return torch.empty(2 * size, dtype=torch.uint8, device="cuda")
