"""Eager torch against itself: what two processes differ by."""

from common.ops.rope import reference as rope

__all__ = ["rope"]
