"""Addresses: a kernel's memory spans, the provenance of its pointers, and its active lanes."""

from __future__ import annotations

import copy
import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
from triton.runtime.jit import TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from common.sandbox.interpreter.operations import wrap
from common.sandbox.poison import PLAIN

Mask = np.ndarray
"""The lanes that make an access."""
Act = Callable[[], Any]
"""Makes the access, and returns its result."""


class Span(NamedTuple):
    """A named range of addresses from `first` to `end`, exclusive."""

    name: str
    first: int
    end: int

    def holds(self, first: int, end: int) -> bool:
        """Return whether the range from `first` to `end`, exclusive, lies in the span."""
        return self.first <= first and end <= self.end


def element(address: int, width: int, spans: Sequence[Span]) -> tuple[str, str]:
    """Return an address's offset from the nearest span, and that span's size.

    For example `("x + 2816", "2800")`, both in elements of `width` bytes, or
    `("x - 3 bytes", "11200 bytes")` for an address in the middle of an element.
    """
    nearest = min(spans, key=lambda span: max(span.first - address, address - span.end + 1, 0))
    offset, size, unit = address - nearest.first, nearest.end - nearest.first, " bytes"
    if not offset % width and not size % width:
        offset, size, unit = offset // width, size // width, ""
    return f"{nearest.name} {'-' if offset < 0 else '+'} {abs(offset)}{unit}", f"{size}{unit}"


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


_live_objects = gc.get_objects


def alive(spans: Sequence[Span], inputs: Sequence[Span]) -> tuple[Span, ...]:
    """Return a launch's own spans and those of all live strided tensors in host memory."""
    tensors = [each for each in _live_objects() if type(each) in PLAIN]
    strided = [t for t in tensors if t.device.type == "cpu" and t.layout is torch.strided]
    live = (span for tensor in strided for span in spans_of("a live tensor", tensor, inputs))
    return tuple({*spans, *live})


# --- the provenance of pointers -------------------------------------------------------------------

# A pointer argument of a launch points into that argument, also after a conversion to an integer
# and back (`(x.to(tl.int64) + 8).to(x.dtype)`). A pointer made from any other integer, such as an
# entry of a table of addresses, may point into every live tensor. The origins are an attribute of
# a handle's type, since the interpreter keeps the type in all operations on pointers.

ANYWHERE = ""
"""The origin of a pointer that a kernel made from an integer that it loaded."""
KEPT = (
    "create_int_to_ptr", "create_ptr_to_int", "create_bitcast", "create_select", "binary_op",
    "cast_impl",
)  # fmt: skip
"""The builder's methods whose result has the origins of all operands."""


def origins_of(value: Any) -> frozenset[str]:
    """Return the arguments that a handle's pointers or integers were made from, as far as known."""
    return getattr(getattr(value, "dtype", None), "origins", frozenset())


def label(name: str, argument: Any) -> Any:
    """Give the pointers in a converted argument of a launch the argument's name as their origin."""
    if isinstance(argument, tuple | tl.tuple):
        for index, part in enumerate(argument):
            label(f"{name}[{index}]", part)
    elif isinstance(argument, tl.tensor | tl.tensor_descriptor):
        handle = getattr(argument.handle, "base", argument.handle)
        if handle.dtype.is_ptr():
            _set_origins(handle, frozenset({name}))
    return argument


def track() -> None:
    """Patch the interpreter so that pointers and integers keep their origins."""
    for name in KEPT:
        unknown = frozenset({ANYWHERE} if name == "create_int_to_ptr" else ())
        wrap(InterpreterBuilder, name, functools.partial(_keep_origins, unknown))


def _keep_origins(
    unknown: frozenset[str], method: Callable[..., TensorHandle], builder: Any, *args: Any
) -> TensorHandle:
    result = method(builder, *args)
    if origins := frozenset().union(*map(origins_of, args)) or unknown:
        _set_origins(result, origins)
    return result


def _set_origins(handle: TensorHandle, origins: frozenset[str]) -> None:
    handle.dtype = copy.copy(handle.dtype)
    handle.dtype.origins = origins


# --- the lanes of an access -----------------------------------------------------------------------


def selected(values: np.ndarray, mask: Mask) -> np.ndarray:
    """Return the values of all lanes that the mask selects."""
    # the interpreter combines a scalar and a block into a mask of integers, which would be indices
    values, lanes = np.broadcast_arrays(values, mask.astype(bool, copy=False))
    array: np.ndarray = values[lanes]
    return array


def width_of(pointers: TensorHandle) -> int:
    """Return the bytes of an element."""
    bits: int = pointers.get_element_ty().primitive_bitwidth
    return max(bits // 8, 1)


def accessed(
    pointers: TensorHandle, mask: Mask, spans: Sequence[Span]
) -> tuple[list[Span], np.ndarray]:
    """Return the spans that an access may touch, and the addresses of active lanes outside them."""
    addresses, width = pointers.data, np.uint64(width_of(pointers))
    if addresses.size:
        first = int(np.minimum.reduce(addresses, axis=None))
        end = int(np.maximum.reduce(addresses, axis=None)) + int(width)
        near = [span for span in spans if span.first < end and first < span.end]
        # in most launches masked lanes lie in the same span too, and the mask need not be applied
        if any(span.holds(first, end) for span in near):
            return near, addresses[:0]
    addresses = selected(addresses, mask)
    near, outside = [], np.ones(addresses.shape, dtype=bool)
    for span in spans:
        if ((addresses < span.end) & (addresses + width > span.first)).any():
            near.append(span)
        outside &= (addresses < span.first) | (addresses + width > span.end)
    return near, addresses[outside]
