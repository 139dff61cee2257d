"""The reference in eager torch, the unit of every speed."""

from common.ops.rotate_half import reference as rotate_half

__all__ = ["rotate_half"]
