"""A rerun that explains an out-of-bounds access: its argument, and any overflow of its offset.

An address shows neither the argument that it was computed from nor an overflow of its 32-bit
offset. So the program runs again up to the same access. During the rerun, each value records the
arguments that it points into and, after a product or sum that overflows its type, the values
without the overflow. A kernel without out-of-bounds accesses does not pay for this.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from common.sandbox.interpreter.conflicts import ATOMIC, kernel_place
from common.sandbox.interpreter.operations import Operation, handles
from common.source import Place

SIGNS = {"create_add": "+", "create_sub": "-", "create_mul": "*"}
"""The operations in which an integer may wrap, and their signs in a report."""
REPEATABLE = re.compile(
    "create_(add|sub|mul|addptr|int_cast|splat|expand_dims|broadcast|reshape|trans)"
)
"""The operations on offsets that can be repeated on the values without the wrap."""


class Wrap(NamedTuple):
    """A product, sum, difference or conversion that overflowed its type."""

    words: str
    """For example `70000 * 45000 does not fit int32`."""
    place: Place
    """For example `line 33 of rope.py: row * stride`."""
    wide: TensorHandle
    """The values without the wrap: the offsets, or values computed from them, such as addresses."""


class Ended(BaseException):
    """The rerun ends; no handler of a kernel may catch this."""


class Explanation:
    """A mode in which a program runs again, up to its first out-of-bounds or atomic access."""

    def __init__(
        self,
        arguments: Mapping[str, Any],
        outside: Callable[[TensorHandle, np.ndarray | None], int | None],
    ) -> None:
        """Take the program's arguments, and a function that finds an out-of-bounds address."""
        self.busy, self._outside = False, outside
        self.address: int | None = None
        """The out-of-bounds address that ended the rerun."""
        self.origins, self.wrap = frozenset[str](), cast(Wrap | None, None)
        """The arguments that the last operation's pointers point into, as far as known, and what
        wrapped in their offset."""
        for name, value in arguments.items():
            for span_name, handle in _pointers(name, value):
                handle.attr["origins"] = frozenset({span_name})

    def call(self, name: str, operation: Operation, args: tuple[Any, ...]) -> Any:
        """Return the result of an operation, labelled with its origins and its wrap."""
        operands = handles(args)
        if operands:  # of an access, its pointers come first
            self.origins, self.wrap = _origins(operands[0]), _wrap_of(operands[0])
        result = operation(*args)
        origins = frozenset[str]().union(*map(_origins, operands))
        for handle in handles(result):
            handle.attr["origins"] = origins
        if REPEATABLE.fullmatch(name) and isinstance(result, TensorHandle):
            result.attr["wrap"] = _wrap(name, operation, args, operands, result)
        return result

    def access(
        self, verb: str, pointers: TensorHandle, mask: np.ndarray | None, act: Callable[[], Any]
    ) -> Any:
        """Make an access.

        Raises:
            Ended: It is out of bounds, or atomic and so cannot be repeated.
        """
        self.address = self._outside(pointers, mask)
        if self.address is not None or verb == ATOMIC:
            raise Ended
        return act()


def _pointers(name: str, value: Any) -> Iterator[tuple[str, TensorHandle]]:
    """Yield the handles of an argument's pointers, each with the name of its span."""
    if isinstance(value, tuple | tl.tuple):
        for index, part in enumerate(value):
            yield from _pointers(f"{name}[{index}]", part)
    elif isinstance(value, tl.tensor | tl.tensor_descriptor):
        handle = getattr(value.handle, "base", value.handle)
        if handle.dtype.is_ptr():
            yield name, handle


def _origins(handle: TensorHandle) -> frozenset[str]:
    origins: frozenset[str] = handle.attr.get("origins", frozenset())
    return origins


def _wrap_of(handle: TensorHandle) -> Wrap | None:
    wrap: Wrap | None = handle.attr.get("wrap")
    return wrap


def _wrap(
    name: str,
    operation: Operation,
    args: tuple[Any, ...],
    operands: Sequence[TensorHandle],
    result: TensorHandle,
) -> Wrap | None:
    """Return the result's new wrap, or an operand's earlier wrap with the values updated."""
    narrows, dtype = name == "create_int_cast", result.dtype.scalar
    earlier = next(filter(None, map(_wrap_of, operands)), None)
    may_wrap = (narrows or name in SIGNS) and dtype.is_int() and dtype.int_bitwidth == 32
    if not earlier and not may_wrap:
        return None
    wide = _widened(operands[0]) if narrows else operation(*map(_widened, args))
    if earlier:
        return earlier._replace(wide=wide)
    wrapped = np.argwhere(wide.data != result.data)
    if not len(wrapped):
        return None
    shape, place = wide.data.shape, tuple(wrapped[0])
    values = (str(np.broadcast_to(operand.data, shape)[place]) for operand in operands)
    expression = f" {SIGNS.get(name, '')} ".join(values)
    return Wrap(f"{expression} does not fit {dtype}", kernel_place(), wide)


def _widened(operand: Any) -> Any:
    """Return an integer in 64 bits, without an earlier wrap; return any other operand unchanged."""
    if not isinstance(operand, TensorHandle):
        return operand
    if wrap := _wrap_of(operand):
        return wrap.wide
    if operand.dtype.scalar.is_ptr():
        return operand
    return TensorHandle(operand.data.astype(np.int64), tl.int64)
