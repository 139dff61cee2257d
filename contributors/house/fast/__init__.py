"""The house's fast kernels: rotary position embedding and masked two-weight layers, for models.

    from fast import rope_qk, masked_ffn

It needs torch and Triton alone, and works under any name and at any place.
"""

from .layers import MaskedFFN, MaskedLinear
from .masked import masked_ffn, masked_linear
from .rope import rope, rope_, rope_qk, rotate_half

__all__ = [
    "MaskedFFN", "MaskedLinear", "masked_ffn", "masked_linear", "rope", "rope_", "rope_qk",
    "rotate_half",
]  # fmt: skip
