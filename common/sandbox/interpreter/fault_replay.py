"""The log of accesses outside, and a second look at one: which pointer, and what wrapped.

An address tells neither the argument that it was made of nor that its offset left 32 bits. So the
kernel's Python runs once more, up to the same access, and each operation's result keeps the
arguments that it points into and, after a product or sum that its type cannot hold, the values
that it would have had. Nothing of this costs a kernel that keeps to its tensors.
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
from common.sandbox.interpreter.recorded_trace import NAMES, LeftTrace, Method, handles

SIGNS = {"create_add": "+", "create_sub": "-", "create_mul": "*"}
"""The operations that an integer may wrap in."""
KEEPING = re.compile(
    "create_(add|sub|mul|addptr|int_cast|splat|expand_dims|broadcast|reshape|trans)"
)
"""Operations on offsets that would be right on the values which did not wrap."""


class Wrap(NamedTuple):
    """A product or sum that left its type."""

    words: str
    """For example `70000 * 45000 does not fit int32, line 33 of rope.py: row * stride`."""
    wide: TensorHandle
    """The values without the wrap: offsets, or what became of them, such as addresses."""


class FaultReplay:
    """Stand-in for a launch's trace while one of its programs runs once more."""

    replaying = True
    """An access outside ends it."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        """Name the pointers among a kernel's arguments."""
        self.listening = False
        self._left: int | None = None
        """The address of the access that ended it."""
        self.pointers: Any = None
        """What the latest access was asked with: pointers, or a block pointer or descriptor."""
        for name, value in arguments.items():
            for whole, handle in _pointers(name, value):
                handle.origins = frozenset({whole})

    def finds(self, program: Callable[[], object], address: int) -> bool:
        """Run the program; return whether the first access outside is at this address again."""
        self.listening = True
        with contextlib.suppress(Exception):  # Left, as Triton wraps it; or memory has changed
            program()
        self.listening = False
        return self._left == address

    @property
    def origins(self) -> frozenset[str]:
        """The arguments that the latest access points into, as far as they are known."""
        return _origins(self.pointers)

    @property
    def wrap(self) -> Wrap | None:
        """The product or sum that the latest access's offset wrapped in."""
        return getattr(self.pointers, "wrap", None)

    def call(self, method: Method, effect: bool, args: tuple[Any, ...], named: Any) -> Any:
        """Return the result of an operation, with what it comes of.

        Raises:
            Left: An access leaves its tensors, or an atomic operation would be made twice.
        """
        self.listening = False
        try:
            if effect:
                self.pointers = next((handle for arg in args for handle in handles(arg)), None)
            result = method(*args, **named)
            if "atomic" in NAMES[method]:
                raise LeftTrace
            if not effect:
                self._follow(method, args, result)
            return result
        except LeftTrace as left:
            self._left = left.address
            raise
        finally:
            self.listening = True

    def _follow(self, method: Method, args: tuple[Any, ...], result: Any) -> None:
        operands = [each for arg in args for each in handles(arg)]
        origins = frozenset[str]().union(*map(_origins, operands))
        for handle in handles(result):
            handle.origins = origins
        if KEEPING.fullmatch(NAMES[method]) and isinstance(result, TensorHandle):
            result.wrap = _wrap(method, args, operands, result)


def _pointers(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the handles of an argument's pointers by the names of their spans."""
    if isinstance(value, tuple | tl.tuple):
        for index, part in enumerate(value):
            yield from _pointers(f"{name}[{index}]", part)
    elif isinstance(value, tl.tensor | tl.tensor_descriptor):
        handle = getattr(value.handle, "base", value.handle)
        if handle.dtype.is_ptr():
            yield name, handle


def _origins(handle: Any) -> frozenset[str]:
    found: frozenset[str] = getattr(getattr(handle, "base", handle), "origins", frozenset())
    return found


def _wrap(
    method: Method, args: tuple[Any, ...], operands: Iterable[Any], result: TensorHandle
) -> Wrap | None:
    """Return what an operation's result, or one of its operands before, wrapped in."""
    earlier: Wrap | None = next(
        filter(None, (getattr(operand, "wrap", None) for operand in operands)), None
    )
    name, dtype = NAMES[method], result.dtype.scalar
    if earlier and name == "create_int_cast":
        return earlier
    if not earlier and (name not in SIGNS or not dtype.is_int() or dtype.int_bitwidth > 32):
        return None
    wide = method(*map(_widened, args))
    if earlier:
        return earlier._replace(wide=wide)
    wrapped = np.argwhere(wide.data != result.data)
    if not len(wrapped):
        return None
    left, right = (
        np.broadcast_to(operand.data, wide.data.shape)[tuple(wrapped[0])] for operand in operands
    )
    words = f"{left} {SIGNS[name]} {right} does not fit {dtype}, {kernel_line()}"
    return Wrap(words, wide)


def _widened(operand: Any) -> Any:
    """Return an integer in 64 bits, without an earlier wrap; a pointer or a shape as it is."""
    if not isinstance(operand, TensorHandle):
        return operand
    if wrap := getattr(operand, "wrap", None):
        return wrap.wide
    if operand.dtype.scalar.is_ptr():
        return operand
    return TensorHandle(operand.data.astype(np.int64), tl.int64)


# --- the log of a call ----------------------------------------------------------------------------


class AccessLog:
    """The accesses of one graded call that left their tensors.

    A solution that empties the list of faults is found out, since a counter runs beside it.
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
        """Return the first fault, if there is one; call this once, at the end."""
        if not next(self.tally):
            return None
        return next(filter(None, self.faults), "an access, whose trace the solution removed")


_NOT_A_KERNEL = tuple(os.path.dirname(path) + os.sep for path in (triton.__file__, __file__))
"""The folders of Triton and of this package, whose frames stand between a check and a kernel."""


def kernel_line() -> str:
    """Return the kernel's line that runs now: `line 12 of rope.py: tl.store(...)`."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(_NOT_A_KERNEL):
        frame = frame.f_back
    return source.of_frame(frame)
