"""Tokens sorted by kind on the device; the gate and its gradient in the products' epilogues."""

from fast import masked_ffn

__all__ = ["masked_ffn"]
