"""Queries and keys by one launch; blocks of one token's heads."""

from fast import rope_qk

__all__ = ["rope_qk"]
