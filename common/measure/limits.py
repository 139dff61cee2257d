"""The least time of given work by a device's peak rates, or by the limits measured beside it.

The board uses measured limits and states the peaks beside them. A time below a peak's is refused.
For a device that is not known here, the limits measured beside the solution take the peak's place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from common.peaks import peak_of
from common.spec import Work
from common.stats import median

MEASURED = "measured"
"""The source of a peak that is not known: the limits timed beside each solution."""
HALF = ("bfloat16", "float16")
FASTER_COPY, FASTER_PRODUCTS = 1.5, 2.0
"""How much faster than the measured copy and products the work of a device without a known peak
can be.

torch's copy reaches 80 to 95 % of the bandwidth, and its products may lose a factor to a kernel
that does not fit their shape. Products of float32 set no floor: a solution may take the tensor
cores for them, in three passes, which torch's own do not.
"""


def broken(samples: Mapping[str, Sequence[float]], work: Work, dtype: str) -> str | None:
    """Return why the GPU cannot have done the work in the solution's time; None if it can.

    The bound is lenient: the bytes that fit the L2 cache are not counted, and at a known peak every
    operation runs at the highest of the rates. 2,050 bytes with 50 of cache at 1 GB/s take at least
    2 µs; where a copy of 3 GB was measured to take 3,000 µs, with 1 GB of cache, at least
    2,000 / 1.5 µs.

    Args:
        samples: The microseconds of `solution`, `copy` and, where there are products, `dense`.
        work: The work of the timed call.
        dtype: The case's.
    """
    found = torch.cuda.get_device_properties()
    times = {name: median(each) for name, each in samples.items()}
    moved = max(work.bytes - found.L2_cache_size, 0)
    if peak := peak_of(found.name):
        arithmetic = work.flops / max(peak.flops_per_second.values())
        least = 1e6 * max(moved / peak.bytes_per_second, arithmetic)
        source = "at its peak"
    else:
        by_memory = moved / max(work.bytes, 1) * times["copy"] / FASTER_COPY
        counted = "dense" in times and dtype in HALF
        least = max(by_memory, times["dense"] / FASTER_PRODUCTS if counted else 0.0)
        source = "by the copy and the products timed beside it"
    if times["solution"] >= least:
        return None
    return f"{times['solution']:.3g} us, and {found.name} needs {least:.3g} us {source}"
