"""Tokens sorted by kind on the device; gathered tiles, one product a token."""

from fast import masked_linear

__all__ = ["masked_linear"]
