"""Eager torch against itself: what two processes differ by."""

from common.ops.rotate_half import reference as rotate_half

__all__ = ["rotate_half"]
