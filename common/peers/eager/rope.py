"""The reference in eager torch, the unit of every speed."""

from common.ops.rope import reference as rope

__all__ = ["rope"]
