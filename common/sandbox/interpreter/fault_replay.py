"""The log of out-of-bounds accesses, and a rerun that explains one: its argument, and any wrap.

An address shows neither the argument that it was computed from nor an overflow of its 32-bit
offset. So the kernel's Python runs again up to the same access. During the rerun, each result
records the arguments that it points into and, after a product or sum that overflows its type, the
values without the overflow. A kernel without out-of-bounds accesses does not pay for this.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import triton
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from common import source
from common.sandbox.interpreter.recorded_trace import NAMES, Method, ReplayFailed, handles

SIGNS = {"create_add": "+", "create_sub": "-", "create_mul": "*"}
"""The operations in which an integer may wrap, and their signs in a report."""
REPEATABLE = re.compile(
    "create_(add|sub|mul|addptr|int_cast|splat|expand_dims|broadcast|reshape|trans)"
)
"""The operations on offsets that can be repeated on the values without the wrap."""


class Wrap(NamedTuple):
    """A product, sum, difference or conversion that overflowed its type."""

    words: str
    """For example `70000 * 45000 does not fit int32, line 33 of rope.py: row * stride`."""
    wide: TensorHandle
    """The values without the wrap: the offsets, or values computed from them, such as addresses."""


class FaultReplay:
    """Stand-in for a launch's trace while one of its programs runs again."""

    replaying = True
    """An out-of-bounds access raises `ReplayFailed`, which ends the rerun."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        """Label each pointer argument of the kernel as its own origin."""
        self.listening = False
        self._fault_address: int | None = None
        """The address of the access that ended the rerun."""
        self.pointers: Any = None
        """The latest access's operand: pointers, a block pointer or a descriptor."""
        for name, value in arguments.items():
            for span_name, handle in _pointers(name, value):
                handle.origins = frozenset({span_name})

    def finds(self, program: Callable[[], object], address: int) -> bool:
        """Run the program; return whether its first out-of-bounds access has this address again."""
        self.listening = True
        with contextlib.suppress(Exception):  # ReplayFailed, wrapped by Triton, or changed memory
            program()
        self.listening = False
        return self._fault_address == address

    @property
    def origins(self) -> frozenset[str]:
        """The arguments that the latest access points into, as far as known."""
        return _origins(self.pointers)

    @property
    def wrap(self) -> Wrap | None:
        """The product or sum that wrapped in the latest access's offset."""
        return getattr(self.pointers, "wrap", None)

    def call(self, method: Method, effect: bool, args: tuple[Any, ...], named: Any) -> Any:
        """Return the result of an operation, labelled with its origins and its wrap.

        Raises:
            ReplayFailed: An access is out of bounds, or an atomic operation has been repeated.
        """
        self.listening = False
        try:
            if effect:
                self.pointers = next((handle for arg in args for handle in handles(arg)), None)
            result = method(*args, **named)
            if "atomic" in NAMES[method]:
                raise ReplayFailed
            if not effect:
                self._label(method, args, result)
            return result
        except ReplayFailed as failure:
            self._fault_address = failure.address
            raise
        finally:
            self.listening = True

    def _label(self, method: Method, args: tuple[Any, ...], result: Any) -> None:
        operands = [handle for arg in args for handle in handles(arg)]
        origins = frozenset[str]().union(*map(_origins, operands))
        for handle in handles(result):
            handle.origins = origins
        if REPEATABLE.fullmatch(NAMES[method]) and isinstance(result, TensorHandle):
            result.wrap = _wrap(method, args, operands, result)


def _pointers(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the handles of an argument's pointers, each with the name of its span."""
    if isinstance(value, tuple | tl.tuple):
        for index, part in enumerate(value):
            yield from _pointers(f"{name}[{index}]", part)
    elif isinstance(value, tl.tensor | tl.tensor_descriptor):
        handle = getattr(value.handle, "base", value.handle)
        if handle.dtype.is_ptr():
            yield name, handle


def _origins(handle: Any) -> frozenset[str]:
    origins: frozenset[str] = getattr(getattr(handle, "base", handle), "origins", frozenset())
    return origins


def _wrap(
    method: Method, args: tuple[Any, ...], operands: Iterable[Any], result: TensorHandle
) -> Wrap | None:
    """Return the result's new wrap, or an operand's earlier wrap with the values updated."""
    earlier: Wrap | None = next(
        filter(None, (getattr(operand, "wrap", None) for operand in operands)), None
    )
    name, dtype = NAMES[method], result.dtype.scalar
    narrowed = not earlier and name == "create_int_cast"
    if earlier and name == "create_int_cast":
        return earlier
    if not (earlier or narrowed or name in SIGNS):
        return None
    if not earlier and (not dtype.is_int() or dtype.int_bitwidth != 32):
        return None
    wide = _widened(next(iter(operands))) if narrowed else method(*map(_widened, args))
    if earlier:
        return earlier._replace(wide=wide)
    wrapped = np.argwhere(wide.data != result.data)
    if not len(wrapped):
        return None
    values = (
        str(np.broadcast_to(operand.data, wide.data.shape)[tuple(wrapped[0])])
        for operand in operands
    )
    expression = f" {SIGNS.get(name, '')} ".join(values)
    return Wrap(f"{expression} does not fit {dtype}, {kernel_line()}", wide)


def _widened(operand: Any) -> Any:
    """Return an integer in 64 bits, without an earlier wrap; return any other operand unchanged."""
    if not isinstance(operand, TensorHandle):
        return operand
    if wrap := getattr(operand, "wrap", None):
        return wrap.wide
    if operand.dtype.scalar.is_ptr():
        return operand
    return TensorHandle(operand.data.astype(np.int64), tl.int64)


# --- the log of a call ----------------------------------------------------------------------------


class AccessLog:
    """The out-of-bounds accesses of one graded call.

    A separate counter reveals a solution that empties the list of faults.
    """

    def __init__(self) -> None:
        """Begin with no fault."""
        self.faults: list[str] = []
        self.tally = itertools.count()

    def add(self, fault: str) -> None:
        """Log one access."""
        self.faults.append(fault)
        next(self.tally)

    def fault(self) -> str | None:
        """Return the first fault, or None; call this once, at the end of the call."""
        if not next(self.tally):
            return None
        return next(filter(None, self.faults), "an access, whose trace the solution removed")


_NOT_A_KERNEL = tuple(os.path.dirname(path) + os.sep for path in (triton.__file__, __file__))
"""The folders of Triton and this package, whose frames lie between a check and the kernel."""


def kernel_line() -> str:
    """Return the kernel's running line: `line 12 of rope.py: tl.store(...)`."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(_NOT_A_KERNEL):
        frame = frame.f_back
    return source.of_frame(frame)
