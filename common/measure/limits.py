"""What a device can do at most, by its vendor's datasheet.

The board goes by the measured limits, and states these beside them where the device is known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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


PEAKS = {
    "NVIDIA A100-SXM4-80GB": _peak(
        2.039, 312, 19.5, 40, "NVIDIA A100 Tensor Core GPU datasheet, 80GB SXM"
    ),
    "NVIDIA H100 80GB HBM3": _peak(
        3.35, 989.4, 66.9, 50, "NVIDIA H100 Tensor Core GPU datasheet, SXM"
    ),
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
