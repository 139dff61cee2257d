"""The least possible time of a workload, by the device's peak rates."""

from __future__ import annotations

import torch

from common.peaks import PEAKS
from common.spec import Work


def broken(microseconds: float, work: Work) -> str | None:
    """Return the reason if a time is impossibly short for the work, otherwise None.

    The bound is lenient: bytes that fit the L2 cache are not counted, and every operation counts at
    the highest rate of the device. For example, 2,050 bytes at 1 GB/s, with a cache of 50 bytes,
    take at least 2 µs. A device without known peaks has no bound.
    """
    gpu = torch.cuda.get_device_properties()
    if not (peak := PEAKS.get(gpu.name)):
        return None
    moved = max(work.bytes - gpu.L2_cache_size, 0)
    arithmetic = work.flops / max(peak.flops_per_second.values())
    least = 1e6 * max(moved / peak.bytes_per_second, arithmetic)
    if microseconds >= least:
        return None
    return f"{microseconds:.3g} us, and {gpu.name} needs {least:.3g} us at its peak"
