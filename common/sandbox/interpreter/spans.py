"""Addresses: the spans that a kernel may touch, where its pointers come from, and its lanes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
from triton.runtime.jit import TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from common.sandbox.interpreter.wrap import wrap


class Span(NamedTuple):
    """A named range of addresses, from `first` up to but without `end`."""

    name: str
    first: int
    end: int

    def holds(self, first: int, end: int) -> bool:
        """Return whether the range from `first` up to `end` lies in the span."""
        return self.first <= first and end <= self.end

    def distance(self, address: int) -> int:
        """Return the bytes between the span and the address, 0 if the address lies in it."""
        return max(self.first - address, address - self.end + 1, 0)


def element(address: int, width: int, spans: Sequence[Span]) -> tuple[str, str]:
    """Return the element at an address, counted from the nearest span, and that span's size.

    For example `("x + 2816", "2800")`, both in elements of `width` bytes, or
    `("x - 3 bytes", "11200 bytes")` where the address lies amid an element.
    """
    nearest = min(spans, key=lambda span: span.distance(address))
    offset, size, unit = address - nearest.first, nearest.end - nearest.first, " bytes"
    if not offset % width and not size % width:
        offset, size, unit = offset // width, size // width, ""
    return f"{nearest.name} {'-' if offset < 0 else '+'} {abs(offset)}{unit}", f"{size}{unit}"


def extent(name: str, tensor: torch.Tensor) -> Span:
    """Return the span from a view's first element to the end of its last one."""
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    elements = last + 1 if tensor.numel() else 0
    first = tensor.data_ptr()
    return Span(name, first, first + elements * tensor.element_size())


def spans_of(name: str, argument: Any, inputs: Sequence[Span]) -> Iterator[Span]:
    """Yield the memory that a kernel may touch through one argument of its launch.

    An argument inside one of the graded call's `inputs` may touch all of that one; any other may
    touch its own storage. An object with an address may touch the tensor that lies there.
    """
    if isinstance(argument, tuple):
        for index, part in enumerate(argument):
            yield from spans_of(f"{name}[{index}]", part, inputs)
    elif isinstance(argument, TensorDescriptor | TensorWrapper):
        yield from spans_of(name, argument.base, inputs)
    elif isinstance(argument, torch.Tensor):
        pointer = argument.data_ptr()
        known = [span for span in inputs if span.first <= pointer < span.end]
        if known:
            yield Span(name, known[0].first, known[0].end)
        elif any(pointer == span.first == span.end for span in inputs):
            yield Span(name, pointer, pointer)
        else:
            storage = argument.untyped_storage()
            yield Span(name, storage.data_ptr(), storage.data_ptr() + storage.nbytes())
    elif hasattr(argument, "data_ptr"):  # an object of the solution's own making
        pointer = argument.data_ptr()
        of_tensors = alive((), inputs)
        yield from (
            tensor._replace(name=name) for tensor in of_tensors if tensor.holds(pointer, pointer)
        )


def alive(spans: Sequence[Span], inputs: Sequence[Span]) -> tuple[Span, ...]:
    """Return a launch's own spans, and those of every tensor that is alive."""
    tensors = live_tensors()
    live = (span for tensor in tensors for span in spans_of("a live tensor", tensor, inputs))
    return tuple({*spans, *live})


# --- where pointers come from ---------------------------------------------------------------------

# A pointer that a launch got as an argument leads to that argument, also after a detour over
# integers (`(x.to(tl.int64) + 8).to(x.dtype)`). A pointer made of any other integer, such as an
# entry of a table of addresses, may lead to every tensor that is alive: `LoadedPointer` is its
# type. The type of a handle survives all that a kernel does to pointers, so the provenance travels
# in it.

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
    for instance in _live_objects():
        if (
            type(instance) in _PLAIN
            and instance.device.type == "cpu"
            and instance.layout is torch.strided
        ):
            yield instance


def track() -> None:
    """Patch the interpreter so that pointers and integers keep their provenance."""
    wrap(InterpreterBuilder, "create_int_to_ptr", _made)
    wrap(InterpreterBuilder, "create_ptr_to_int", _taken)
    wrap(InterpreterBuilder, "create_bitcast", _seen_otherwise)
    wrap(InterpreterBuilder, "create_select", _chosen)
    wrap(InterpreterBuilder, "binary_op", _computed)
    wrap(InterpreterBuilder, "cast_impl", _converted)


Method = Callable[..., TensorHandle]


def _made(method: Method, builder: Any, source: TensorHandle, kind: Any) -> TensorHandle:
    made = method(builder, source, kind)
    return made if _is_address(source) else _as_loaded(made)


def _taken(method: Method, builder: Any, source: TensorHandle, kind: Any) -> TensorHandle:
    taken = method(builder, source, kind)
    return taken if is_loaded(source) else _as_address(taken)


def _seen_otherwise(method: Method, builder: Any, source: TensorHandle, kind: Any) -> TensorHandle:
    seen = method(builder, source, kind)
    return _as_loaded(seen) if is_loaded(source) and seen.dtype.is_ptr() else seen


def _chosen(
    method: Method, builder: Any, condition: Any, one: TensorHandle, other: TensorHandle
) -> TensorHandle:
    chosen = method(builder, condition, one, other)
    return _as_loaded(chosen) if is_loaded(one) or is_loaded(other) else chosen


def _computed(
    method: Method, builder: Any, left: TensorHandle, right: TensorHandle, op: Any
) -> TensorHandle:
    result = method(builder, left, right, op)
    return _as_address(result) if _is_address(left) or _is_address(right) else result


def _converted(method: Method, builder: Any, source: TensorHandle, *kind: Any) -> TensorHandle:
    result = method(builder, source, *kind)
    return _as_address(result) if _is_address(source) and result.dtype.is_int() else result


def _is_address(handle: TensorHandle) -> bool:
    return type(handle.dtype) is Address


def _as_address(handle: TensorHandle) -> TensorHandle:
    return TensorHandle(handle.data, Address(handle.dtype.scalar.name))


def _as_loaded(handle: TensorHandle) -> TensorHandle:
    plain = handle.dtype.scalar
    kind = LoadedPointer(plain.element_ty, plain.address_space, plain.const)
    return TensorHandle(handle.data, kind)


# --- the lanes of an access -----------------------------------------------------------------------


def active(pointers: TensorHandle, mask: np.ndarray | None) -> np.ndarray:
    """Return the addresses of all lanes that the mask leaves active."""
    addresses: np.ndarray = pointers.data
    if mask is None:
        return addresses
    shape = np.broadcast_shapes(addresses.shape, mask.shape)
    # of a scalar and a block the interpreter makes a mask of integers, which would be indices
    lanes = np.broadcast_to(mask.astype(bool, copy=False), shape)
    array: np.ndarray = np.broadcast_to(addresses, shape)[lanes]
    return array


def width_of(pointers: TensorHandle) -> int:
    """Return the bytes of an element."""
    bits: int = pointers.get_element_ty().primitive_bitwidth
    return max(bits // 8, 1)


def bare(mask: Any) -> np.ndarray:
    """Return the mask as an array; a block pointer's is one already, any other is a handle."""
    array: np.ndarray = mask.data if isinstance(mask, TensorHandle) else mask
    return array
