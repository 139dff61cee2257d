"""What a device can do at most, by its vendor's datasheet, and so the least time that work takes.

The board goes by the measured limits and states these beside them; a time below them is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from common.spec import Work

TERA = 1e12
MEBI = 1 << 20


@dataclass(frozen=True)
class Peak:
    """Rates without sparsity; float32 outside the tensor cores, the half types summed in float32.
    Bytes are those of device memory, read and written together."""

    bytes_per_second: float
    flops_per_second: Mapping[str, float]
    l2_bytes: int
    source: str


def _peak(terabytes: float, half: float, single: float, mebibytes: int, source: str) -> Peak:
    rates = {"bfloat16": half * TERA, "float16": half * TERA, "float32": single * TERA}
    return Peak(terabytes * TERA, rates, mebibytes * MEBI, source)


A100 = "NVIDIA A100 Tensor Core GPU datasheet"
H100 = "NVIDIA H100 Tensor Core GPU datasheet"
PEAKS = {
    "NVIDIA A100-PCIE-40GB": _peak(1.555, 312, 19.5, 40, f"{A100}, 40GB PCIe"),
    "NVIDIA A100-SXM4-40GB": _peak(1.555, 312, 19.5, 40, f"{A100}, 40GB SXM"),
    "NVIDIA A100 80GB PCIe": _peak(1.935, 312, 19.5, 40, f"{A100}, 80GB PCIe"),
    "NVIDIA A100-SXM4-80GB": _peak(2.039, 312, 19.5, 40, f"{A100}, 80GB SXM"),
    "NVIDIA H100 PCIe": _peak(2.0, 756, 51, 50, f"{H100}, PCIe"),
    "NVIDIA H100 80GB HBM3": _peak(3.35, 989.4, 66.9, 50, f"{H100}, SXM"),
    # its datasheet is silent about L2: what the device itself reports
    "NVIDIA H200": _peak(4.8, 989.4, 66.9, 60, "NVIDIA H200 Tensor Core GPU datasheet, SXM"),
    "NVIDIA GeForce RTX 4090": _peak(
        1.008, 165.2, 82.6, 72, "NVIDIA Ada GPU architecture whitepaper, appendix A"
    ),
}
"""By the name that torch gives the device."""


def peak_of(device_name: str) -> Peak | None:
    """None where no datasheet is known here."""
    return PEAKS.get(device_name)


def floor(peak: Peak, l2_bytes: int, work: Work) -> float:
    """Microseconds: of the bytes, what fits the cache may never leave it; of the rates, the
    highest."""
    moved = max(work.bytes - l2_bytes, 0)
    arithmetic = work.flops / max(peak.flops_per_second.values())
    return 1e6 * max(moved / peak.bytes_per_second, arithmetic)


def broken(samples: Sequence[float], work: Work, device: str) -> str | None:
    """Why these samples, in microseconds, cannot be what the work took."""
    if device != "cuda" or not samples:
        return None
    found = torch.cuda.get_device_properties()
    peak = peak_of(found.name)
    if peak is None or median(samples) >= (least := floor(peak, found.L2_cache_size, work)):
        return None
    return f"{median(samples):.3g} us, and {found.name} needs {least:.3g} us at its peak"
