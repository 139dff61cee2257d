"""GPU memory of one process, as torch's allocator counts it.

Memory that native code allocates through CUDA, or through Triton's own allocator, is not counted.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

import torch

SCARCE = 1 / 8
"""The share of the GPU's memory below which free memory is little."""
YOUNG = 1
"""The oldest generation that is garbage-collected: the reference cycles of results are young."""


@dataclass(frozen=True)
class Taken:
    """Bytes that a call allocated, beyond the bytes allocated before it."""

    peak: int
    kept: int
    """The bytes still allocated after the call."""


def taken(run: Callable[[], object]) -> Taken | None:
    """Run a call; return the memory that it allocated, or None on a CPU.

    Sizes are as requested, before rounding: the allocator rounds a size up by up to a megabyte,
    and not always by the same amount.
    """
    if not torch.cuda.is_available():
        run()
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = _requested_bytes("current")
    run()
    return Taken(_requested_bytes("peak") - before, _requested_bytes("current") - before)


def _requested_bytes(statistic: str) -> int:
    return int(torch.cuda.memory_stats()[f"requested_bytes.all.{statistic}"])


def available() -> int:
    """Return the bytes that this process can still allocate."""
    free, total = torch.cuda.mem_get_info()
    reserved = torch.cuda.memory_reserved()
    allowed = int(torch.cuda.get_per_process_memory_fraction() * total) - reserved
    return max(min(free, allowed), 0) + reserved - torch.cuda.memory_allocated()


def synchronize() -> None:
    """Wait until the GPU, if there is one, has finished all queued work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def give_back() -> None:
    """Release the GPU memory that torch caches, so that other processes can allocate it."""
    gc.collect(YOUNG)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def finish() -> None:
    """Wait for the GPU; if little of its memory is free, also `give_back`."""
    synchronize()
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        if free < SCARCE * total:
            give_back()


def twice_the_l2() -> torch.Tensor:
    """Return a buffer to overwrite between two calls, so that the L2 cache is cold for a call."""
    if not torch.cuda.is_available():
        return torch.empty(0)
    size = torch.cuda.get_device_properties().L2_cache_size
    return torch.empty(2 * size, dtype=torch.uint8, device="cuda")
