"""The reference in eager torch: both products, then a select."""

from common.ops.masked_linear import reference as masked_linear

__all__ = ["masked_linear"]
