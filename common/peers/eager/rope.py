"""The reference itself, as torch runs it without a compiler: what every speed is counted in."""

from common.ops.rope import reference as rope

__all__ = ["rope"]
