"""The reference itself, as torch runs it without a compiler: what every speed is counted in."""

from common.ops.rotate_half import reference as rotate_half

__all__ = ["rotate_half"]
