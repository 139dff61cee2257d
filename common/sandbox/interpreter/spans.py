"""Named ranges of addresses: the memory that a kernel may touch through an argument."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from triton.runtime.jit import TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from common.sandbox.interpreter import provenance


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
        yield from (each._replace(name=name) for each in of_tensors if each.holds(pointer, pointer))


def alive(spans: Sequence[Span], inputs: Sequence[Span]) -> tuple[Span, ...]:
    """Return a launch's own spans, and those of every tensor that is alive."""
    tensors = provenance.live_tensors()
    live = (span for each in tensors for span in spans_of("a live tensor", each, inputs))
    return tuple({*spans, *live})
