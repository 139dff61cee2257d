"""Blocks of one token's heads, in memory's order; wide loads."""

from fast import rope

__all__ = ["rope"]
