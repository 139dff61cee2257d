"""Tiles of whole rows; contiguous accesses in either layout."""

from fast import rotate_half

__all__ = ["rotate_half"]
