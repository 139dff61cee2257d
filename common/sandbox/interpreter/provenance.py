"""The provenance of addresses: which pointers a kernel made of integers that it was given.

A pointer that a launch got as an argument leads to that argument, also after a detour over integers
(`(x.to(tl.int64) + 8).to(x.dtype)`). A pointer made of any other integer, such as an entry of a
table of addresses, may lead to every tensor that is alive: `LoadedPointer` is its type. The type of
a handle survives all that a kernel does to pointers, so the provenance travels in it.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_live_objects = gc.get_objects
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
"""Subclasses are left out: some have no memory of their own."""


class LoadedPointer(tl.pointer_type):  # type: ignore[misc]
    """The type of a pointer that a kernel made of an integer."""


class Address(tl.dtype):  # type: ignore[misc]
    """The type of an integer that a kernel made of a pointer of its launch."""


def is_loaded(pointers: TensorHandle) -> bool:
    """Return whether a kernel made the pointers of integers that it was given."""
    return isinstance(pointers.dtype.scalar, LoadedPointer)


def live_tensors() -> Iterator[torch.Tensor]:
    """Yield the dense tensors in this process's memory that are alive."""
    for each in _live_objects():
        if type(each) in _PLAIN and each.device.type == "cpu" and each.layout is torch.strided:
            yield each


def track() -> None:
    """Patch the interpreter so that pointers and integers keep their provenance."""
    builder = InterpreterBuilder
    builder.create_int_to_ptr = _made(builder.create_int_to_ptr)
    builder.create_ptr_to_int = _taken(builder.create_ptr_to_int)
    builder.create_bitcast = _seen_otherwise(builder.create_bitcast)
    builder.create_select = _chosen(builder.create_select)
    builder.binary_op = _computed(builder.binary_op)
    builder.cast_impl = _converted(builder.cast_impl)


Method = Callable[..., TensorHandle]


def _made(method: Method) -> Method:
    @functools.wraps(method)
    def int_to_ptr(self: Any, source: TensorHandle, kind: Any) -> TensorHandle:
        made = method(self, source, kind)
        return made if _is_address(source) else _as_loaded(made)

    return int_to_ptr


def _taken(method: Method) -> Method:
    @functools.wraps(method)
    def ptr_to_int(self: Any, source: TensorHandle, kind: Any) -> TensorHandle:
        taken = method(self, source, kind)
        return taken if is_loaded(source) else _as_address(taken)

    return ptr_to_int


def _seen_otherwise(method: Method) -> Method:
    @functools.wraps(method)
    def bitcast(self: Any, source: TensorHandle, kind: Any) -> TensorHandle:
        seen = method(self, source, kind)
        return _as_loaded(seen) if is_loaded(source) and seen.dtype.is_ptr() else seen

    return bitcast


def _chosen(method: Method) -> Method:
    @functools.wraps(method)
    def select(self: Any, condition: Any, one: TensorHandle, other: TensorHandle) -> TensorHandle:
        chosen = method(self, condition, one, other)
        return _as_loaded(chosen) if is_loaded(one) or is_loaded(other) else chosen

    return select


def _computed(method: Method) -> Method:
    @functools.wraps(method)
    def binary_op(self: Any, left: TensorHandle, right: TensorHandle, op: Any) -> TensorHandle:
        result = method(self, left, right, op)
        return _as_address(result) if _is_address(left) or _is_address(right) else result

    return binary_op


def _converted(method: Method) -> Method:
    @functools.wraps(method)
    def cast(self: Any, source: TensorHandle, *kind: Any) -> TensorHandle:
        result = method(self, source, *kind)
        return _as_address(result) if _is_address(source) and result.dtype.is_int() else result

    return cast


def _is_address(handle: TensorHandle) -> bool:
    return type(handle.dtype) is Address


def _as_address(handle: TensorHandle) -> TensorHandle:
    return TensorHandle(handle.data, Address(handle.dtype.scalar.name))


def _as_loaded(handle: TensorHandle) -> TensorHandle:
    plain = handle.dtype.scalar
    kind = LoadedPointer(plain.element_ty, plain.address_space, plain.const)
    return TensorHandle(handle.data, kind)
