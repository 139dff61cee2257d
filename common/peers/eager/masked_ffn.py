"""The reference in eager torch: both layers, then a select."""

from common.ops.masked_ffn import reference as masked_ffn

__all__ = ["masked_ffn"]
