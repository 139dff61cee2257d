"""What no device can do: the least time that the work of a case takes at the peak of its parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from common.spec import Work


@dataclass(frozen=True)
class Peak:
    """Of the memory, bytes a second, and of the fastest unit that computes in 16 bits or more with
    dense operands, operations a second; each as its maker states it."""

    bandwidth: float
    flops: float


PEAKS = {
    # as torch names them; NVIDIA's data sheets, without sparsity. Of the two A100 with 80 GB:
    # 1,935 and 2,039 GB/s; H100 SXM: 3.35 TB/s, 989.4 TFLOPS; H200: 4.8 TB/s, the same chip
    "NVIDIA A100-PCIE-40GB": Peak(1.555e12, 312e12),
    "NVIDIA A100-SXM4-40GB": Peak(1.555e12, 312e12),
    "NVIDIA A100 80GB PCIe": Peak(1.935e12, 312e12),
    "NVIDIA A100-SXM4-80GB": Peak(2.039e12, 312e12),
    "NVIDIA H100 PCIe": Peak(2.0e12, 756e12),
    "NVIDIA H100 80GB HBM3": Peak(3.35e12, 989.4e12),
    "NVIDIA H200": Peak(4.8e12, 989.4e12),
    "NVIDIA L4": Peak(3.0e11, 121e12),
    "NVIDIA B200": Peak(8.0e12, 2.25e15),
}


def floor(name: str, l2_bytes: int, work: Iterable[Work]) -> float | None:
    """Microseconds; what fits the cache may never have left it. None where no peak is known."""
    if name not in PEAKS:
        return None
    peak, work = PEAKS[name], list(work)
    moved = max(sum(each.bytes for each in work) - l2_bytes, 0)
    return 1e6 * max(moved / peak.bandwidth, sum(each.flops for each in work) / peak.flops)


def broken(samples: Sequence[float], work: Iterable[Work], device: str) -> str | None:
    """Why these samples, in microseconds, cannot be what the work took."""
    if device != "cuda" or not samples:
        return None
    name, found = torch.cuda.get_device_name(), torch.cuda.get_device_properties()
    least = floor(name, found.L2_cache_size, work)
    if least is None or median(samples) >= least:
        return None
    return f"{median(samples):.3g} us, and {name} needs {least:.3g} us at its peak"
