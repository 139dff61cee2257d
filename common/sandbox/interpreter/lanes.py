"""The lanes of an access: their addresses, those that a mask leaves active, and their width."""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.runtime.interpreter import TensorHandle


def active(pointers: TensorHandle, mask: np.ndarray | None) -> np.ndarray:
    """Return the addresses of all lanes that the mask leaves active."""
    addresses: np.ndarray = pointers.data
    if mask is None:
        return addresses
    shape = np.broadcast_shapes(addresses.shape, mask.shape)
    # of a scalar and a block the interpreter makes a mask of integers, which would be indices
    lanes = np.broadcast_to(mask.astype(bool, copy=False), shape)
    found: np.ndarray = np.broadcast_to(addresses, shape)[lanes]
    return found


def width_of(pointers: TensorHandle) -> int:
    """Return the bytes of an element."""
    bits: int = pointers.get_element_ty().primitive_bitwidth
    return max(bits // 8, 1)


def bare(mask: Any) -> np.ndarray:
    """Return the mask as an array; a block pointer's is one already, any other is a handle."""
    array: np.ndarray = mask.data if isinstance(mask, TensorHandle) else mask
    return array
