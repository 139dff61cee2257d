"""The least possible time of a workload, by the device's peak rates or by measured limits.

The board uses measured limits and shows the peaks next to them. The harness rejects a time that is
below the time at peak rates. For a device without known peaks, it derives the bound from the limits
that were measured in turns with the solution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from common.peaks import PEAKS
from common.spec import Work
from common.stats import median

MEASURED = "measured"
"""The source for a device without known peaks: the limits timed in turns with each solution."""
HALF = ("bfloat16", "float16")
FASTER_COPY, FASTER_PRODUCTS = 1.5, 2.0
"""On a device without known peaks, the most that a solution's traffic and arithmetic can be faster
than the measured copy and products.

torch's copy reaches 80 to 95 % of the bandwidth, and its products may be several times slower where
cuBLAS has no kernel that fits their shape. Products in float32 set no lower bound: a solution may
compute them on the tensor cores in three passes, and torch does not.
"""


def broken(samples: Mapping[str, Sequence[float]], work: Work, dtype: str) -> str | None:
    """Return the reason if the solution's time is impossibly short for the work, otherwise None.

    The bound is lenient: bytes that fit the L2 cache are not counted, and with known peaks every
    operation counts at the highest rate of the device. Examples: 2,050 bytes at 1 GB/s, with a
    cache of 50 bytes, take at least 2 µs. Without known peaks, 3 GB whose copy took 3,000 µs, with
    a cache of 1 GB, take at least 2,000 / 1.5 µs.

    Args:
        samples: Microseconds of `solution`, `copy` and, if the op has products, `dense`.
        work: The work of the timed call.
        dtype: The dtype of the case.
    """
    gpu = torch.cuda.get_device_properties()
    times = {name: median(microseconds) for name, microseconds in samples.items()}
    moved = max(work.bytes - gpu.L2_cache_size, 0)
    if peak := PEAKS.get(gpu.name):
        arithmetic = work.flops / max(peak.flops_per_second.values())
        least = 1e6 * max(moved / peak.bytes_per_second, arithmetic)
        source = "at its peak"
    else:
        by_memory = moved / max(work.bytes, 1) * times["copy"] / FASTER_COPY
        counted = "dense" in times and dtype in HALF
        least = max(by_memory, times["dense"] / FASTER_PRODUCTS if counted else 0.0)
        source = "by the measured copy and products"
    if times["solution"] >= least:
        return None
    return f"{times['solution']:.3g} us, and {gpu.name} needs {least:.3g} us {source}"
