"""Peak rates of known devices, without sparsity, from their vendor's datasheets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TERA = 1e12


@dataclass(frozen=True)
class Peak:
    """The peak rates of a device, without sparsity."""

    bytes_per_second: float
    """The bandwidth of device memory, for reads and writes in total."""
    flops_per_second: Mapping[str, float]
    """By dtype: float32 without tensor cores, the half types with accumulation in float32."""
    source: str
    """The datasheet."""


def _peak(terabytes: float, half: float, single: float, source: str) -> Peak:
    rates = {"bfloat16": half * TERA, "float16": half * TERA, "float32": single * TERA}
    return Peak(terabytes * TERA, rates, source)


A100 = "NVIDIA A100 Tensor Core GPU datasheet"
H100 = "NVIDIA H100 Tensor Core GPU datasheet"
PEAKS = {
    "NVIDIA A100-PCIE-40GB": _peak(1.555, 312, 19.5, f"{A100}, 40GB PCIe"),
    "NVIDIA A100-SXM4-40GB": _peak(1.555, 312, 19.5, f"{A100}, 40GB SXM"),
    "NVIDIA A100 80GB PCIe": _peak(1.935, 312, 19.5, f"{A100}, 80GB PCIe"),
    "NVIDIA A100-SXM4-80GB": _peak(2.039, 312, 19.5, f"{A100}, 80GB SXM"),
    "NVIDIA H100 PCIe": _peak(2.0, 756, 51, f"{H100}, PCIe"),
    "NVIDIA H100 80GB HBM3": _peak(3.35, 989.4, 66.9, f"{H100}, SXM"),
    "NVIDIA H200": _peak(4.8, 989.4, 66.9, "NVIDIA H200 Tensor Core GPU datasheet, SXM"),
    "NVIDIA GeForce RTX 4090": _peak(
        1.008, 165.2, 82.6, "NVIDIA Ada GPU architecture whitepaper, appendix A"
    ),
}
"""The peaks by the name that torch gives the device."""
