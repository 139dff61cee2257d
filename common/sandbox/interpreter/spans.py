"""Addresses: a kernel's memory spans, the provenance of its pointers, and its active lanes."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
from triton.runtime.jit import TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from common.sandbox.interpreter.operations import wrap


class Span(NamedTuple):
    """A named range of addresses from `first` to `end`, exclusive."""

    name: str
    first: int
    end: int

    def holds(self, first: int, end: int) -> bool:
        """Return whether the range from `first` to `end`, exclusive, lies in the span."""
        return self.first <= first and end <= self.end

    def distance(self, address: int) -> int:
        """Return the bytes between the span and the address, 0 for an address in the span."""
        return max(self.first - address, address - self.end + 1, 0)


def element(address: int, width: int, spans: Sequence[Span]) -> tuple[str, str]:
    """Return an address's offset from the nearest span, and that span's size.

    For example `("x + 2816", "2800")`, both in elements of `width` bytes, or
    `("x - 3 bytes", "11200 bytes")` for an address in the middle of an element.
    """
    nearest = min(spans, key=lambda span: span.distance(address))
    offset, size, unit = address - nearest.first, nearest.end - nearest.first, " bytes"
    if not offset % width and not size % width:
        offset, size, unit = offset // width, size // width, ""
    return f"{nearest.name} {'-' if offset < 0 else '+'} {abs(offset)}{unit}", f"{size}{unit}"


def extent(name: str, tensor: torch.Tensor) -> Span:
    """Return the span from a view's first element to the end of its last element."""
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    elements = last + 1 if tensor.numel() else 0
    first = tensor.data_ptr()
    return Span(name, first, first + elements * tensor.element_size())


def spans_of(name: str, argument: Any, inputs: Sequence[Span]) -> Iterator[Span]:
    """Yield the memory that a kernel may touch through one argument of its launch.

    Through an argument inside one of the graded call's `inputs`, a kernel may touch that whole
    input; through any other tensor, the tensor's storage; through an object with a `data_ptr`, the
    live tensor at that address.
    """
    if isinstance(argument, tuple):
        for index, part in enumerate(argument):
            yield from spans_of(f"{name}[{index}]", part, inputs)
    elif isinstance(argument, TensorDescriptor | TensorWrapper):
        yield from spans_of(name, argument.base, inputs)
    elif isinstance(argument, torch.Tensor):
        pointer = argument.data_ptr()
        containing = [span for span in inputs if span.first <= pointer < span.end]
        if containing:
            yield Span(name, containing[0].first, containing[0].end)
        elif any(pointer == span.first == span.end for span in inputs):
            yield Span(name, pointer, pointer)
        else:
            storage = argument.untyped_storage()
            yield Span(name, storage.data_ptr(), storage.data_ptr() + storage.nbytes())
    elif hasattr(argument, "data_ptr"):  # an object of a class of the solution
        pointer = argument.data_ptr()
        live_spans = alive((), inputs)
        yield from (span._replace(name=name) for span in live_spans if span.holds(pointer, pointer))


def alive(spans: Sequence[Span], inputs: Sequence[Span]) -> tuple[Span, ...]:
    """Return a launch's own spans and the spans of all live tensors."""
    tensors = live_tensors()
    live = (span for tensor in tensors for span in spans_of("a live tensor", tensor, inputs))
    return tuple({*spans, *live})


# --- the provenance of pointers -------------------------------------------------------------------

# A pointer argument of a launch points into that argument, also after a conversion to an integer
# and back (`(x.to(tl.int64) + 8).to(x.dtype)`). A pointer made from any other integer, such as an
# entry of a table of addresses, has the type `LoadedPointer` and may point into every live tensor.
# The type records the provenance, since the interpreter keeps a handle's type in all operations on
# pointers.

Method = Callable[..., TensorHandle]
_live_objects = gc.get_objects
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
"""Subclasses are excluded, since some have no memory of their own."""


class LoadedPointer(tl.pointer_type):  # type: ignore[misc]
    """The type of a pointer that a kernel made from an integer."""


class Address(tl.dtype):  # type: ignore[misc]
    """The type of an integer that a kernel made from a pointer argument."""


def is_loaded(pointers: TensorHandle) -> bool:
    """Return whether a kernel made the pointers from integers other than converted arguments."""
    return isinstance(pointers.dtype.scalar, LoadedPointer)


def live_tensors() -> Iterator[torch.Tensor]:
    """Yield the live strided tensors in this process's host memory."""
    for instance in _live_objects():
        if (
            type(instance) in _PLAIN
            and instance.device.type == "cpu"
            and instance.layout is torch.strided
        ):
            yield instance


def _is_address(handle: TensorHandle) -> bool:
    return type(handle.dtype) is Address


def _as_address(handle: TensorHandle) -> TensorHandle:
    return TensorHandle(handle.data, Address(handle.dtype.scalar.name))


def _as_loaded(handle: TensorHandle) -> TensorHandle:
    pointer = handle.dtype.scalar
    dtype = LoadedPointer(pointer.element_ty, pointer.address_space, pointer.const)
    return TensorHandle(handle.data, dtype)


MARKS: Mapping[str, tuple[Callable[..., bool], Callable[[TensorHandle], TensorHandle]]] = {
    "create_int_to_ptr": (lambda _, source, *__: not _is_address(source), _as_loaded),
    "create_ptr_to_int": (lambda _, source, *__: not is_loaded(source), _as_address),
    "create_bitcast": (lambda r, source, *_: is_loaded(source) and r.dtype.is_ptr(), _as_loaded),
    "create_select": (lambda _, __, left, right: is_loaded(left) or is_loaded(right), _as_loaded),
    "binary_op": (lambda _, x, y, *__: _is_address(x) or _is_address(y), _as_address),
    "cast_impl": (lambda r, source, *_: _is_address(source) and r.dtype.is_int(), _as_address),
}
"""By the builder's method: whether its result gets another type, from the result and the operands,
and the function that gives it."""


def track() -> None:
    """Patch the interpreter so that pointers and integers keep their provenance."""
    for name, (applies, mark) in MARKS.items():
        wrap(InterpreterBuilder, name, functools.partial(_marked, applies, mark))


def _marked(
    applies: Callable[..., bool],
    mark: Callable[[TensorHandle], TensorHandle],
    method: Method,
    builder: Any,
    *args: Any,
) -> TensorHandle:
    result = method(builder, *args)
    return mark(result) if applies(result, *args) else result


# --- the lanes of an access -----------------------------------------------------------------------


def selected(values: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Return the values of all lanes that the mask selects."""
    if mask is None:
        return values
    shape = np.broadcast_shapes(values.shape, mask.shape)
    # the interpreter combines a scalar and a block into a mask of integers, which would be indices
    lanes = np.broadcast_to(mask.astype(bool, copy=False), shape)
    array: np.ndarray = np.broadcast_to(values, shape)[lanes]
    return array


def width_of(pointers: TensorHandle) -> int:
    """Return the bytes of an element."""
    bits: int = pointers.get_element_ty().primitive_bitwidth
    return max(bits // 8, 1)


def bare(mask: Any) -> np.ndarray:
    """Return the mask as an array; a block pointer's mask is an array already."""
    array: np.ndarray = mask.data if isinstance(mask, TensorHandle) else mask
    return array
