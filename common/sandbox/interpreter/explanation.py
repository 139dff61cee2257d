"""What explains a failure: two programs of a launch that conflict, or an offset that wrapped.

Both are searched only when a case has failed: for a conflict, every element of every access of a
repeated call is looked up; for a wrap, a program runs again and each offset is computed twice.
"""

from __future__ import annotations

import ctypes
import operator
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

from common import source
from common.arena import extent
from common.sandbox.interpreter.operations import Operation, handles
from common.sandbox.interpreter.spans import Act, Mask, Span, element, selected, width_of
from common.source import Place, Reason

READS, WRITES, ATOMIC = "reads", "writes", "updates"
"""The verb for each type of access."""


class Access(NamedTuple):
    """One access of a program: `program (6, 4)`, `reads`, `line 31 of rope.py: tl.load(x)`."""

    program: tuple[int, ...]
    verb: str
    place: Place

    @classmethod
    def now(cls, verb: str) -> Access:
        """Return the access that the running program is about to make."""
        builder = interpreter.interpreter_builder
        rank = max((n for n, size in enumerate(builder.grid_dim, 1) if size > 1), default=1)
        return cls(builder.grid_idx[:rank], verb, kernel_place())


_NOT_A_KERNEL = tuple(os.path.dirname(path) + os.sep for path in (triton.__file__, __file__))
"""The folders of Triton and this package, whose frames lie between a check and the kernel."""


def kernel_place() -> Place:
    """Return the kernel's running expression: `line 12 of rope.py: tl.store(...)`."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(_NOT_A_KERNEL):
        frame = frame.f_back
    return source.of_frame(frame)


Store = tuple[Place, np.ndarray, Mask, np.ndarray]
"""The place of a store or update, its lanes' addresses, the active ones, and the bits it left."""


class Memory(NamedTuple):
    """The addresses of a tensor, which are known also after the tensor is freed."""

    first: int
    end: int
    strides: tuple[int, ...]
    """In bytes."""

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Memory:
        """Return the memory of a tensor."""
        return cls(*extent(tensor), tuple(tensor.itemsize * each for each in tensor.stride()))

    def stored(self, made: Sequence[Store], index: Sequence[int], bits: int | None) -> Place | None:
        """Return the place of the last store of an element; None if torch has written it since.

        The element is given by its bits as an integer. If they are None, a store has missed it:
        return the last of the stores nearest to it in the tensor.
        """
        address, found = self.first + sum(map(operator.mul, index, self.strides)), None
        near = self.end - self.first
        for place, lanes, mask, left in made:
            if bits is None:
                inside = lanes[(lanes >= self.first) & (lanes < self.end)].astype(np.int64)
                if inside.size and (distance := abs(inside - address).min()) <= near:
                    near, found = distance, place
            elif (here := selected(lanes, mask) == address).any():
                found = place if selected(left, mask)[here][-1] == bits else None
        return found


# --- two programs, one of which changes an element that the other touches -------------------------


class Conflicts:
    """The first conflict of a call; a conflict of two atomics only if there is no other.

    The result depends on the order of conflicting programs; the order of atomics changes only the
    rounding of a sum, or the result of a ticket counter.
    """

    def __init__(self) -> None:
        """Begin with no launch."""
        self._found: dict[bool, Reason] = {}
        """The first conflict of atomics, and the first other one."""
        self.begin_launch(())

    def begin_launch(self, spans: Sequence[Span]) -> None:
        """Forget all accesses: a launch begins after the previous launch has ended."""
        self._spans = spans
        self._read: dict[int, Access] = {}  # programs run one by one: the first reader is enough
        self._written: dict[int, Access] = {}
        self._changed: dict[int, Access] = {}

    @property
    def conflict(self) -> Reason:
        """The conflict: `programs (0,) and (1,) both write out + 64, line 12 of ...`, or ""."""
        return self._found.get(False) or self._found.get(True) or Reason("")

    def access(self, verb: str, pointers: TensorHandle, mask: Mask, act: Act) -> Any:
        """Make an access; ignore the conflicts of a write that leaves the bytes unchanged."""
        access, width = Access.now(verb), width_of(pointers)
        addresses = selected(pointers.data, mask).ravel().tolist()
        if verb == READS:
            for address in addresses:
                self._compare(self._changed.get(address), access, address, width)
                self._read.setdefault(address, access)
            return act()
        before = [ctypes.string_at(address, width) for address in addresses]
        result = act()
        for address, content in zip(addresses, before, strict=True):
            if ctypes.string_at(address, width) != content:
                for accesses in (self._written, self._read):
                    self._compare(accesses.get(address), access, address, width)
                self._changed[address] = access
            self._written[address] = access
        return result

    def _compare(self, earlier: Access | None, access: Access, address: int, width: int) -> None:
        """Record two programs' accesses to an element if this is the first conflict of its kind."""
        if earlier is None or earlier.program == access.program:
            return
        atomics = earlier.verb == access.verb == ATOMIC
        if atomics in self._found:
            return
        at = f"{element(address, width, self._spans)[0]}, {earlier.place}"
        if earlier[1:] == access[1:]:
            both = f"programs {earlier.program} and {access.program} both"
            reason = Reason(f"{both} {access.verb.removesuffix('s')} {at}", (access.place,))
        else:
            then = f"which program {access.program} {access.verb}, {access.place}"
            text = f"program {earlier.program} {earlier.verb} {at}, {then}"
            reason = Reason(text, (earlier.place, access.place))
        self._found[atomics] = reason


# --- an offset that wrapped -----------------------------------------------------------------------

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


@dataclass
class Rerun:
    """A mode in which a program runs again, up to an access that it made out of bounds.

    Which product left 32 bits? After one did, a value's `attr` has the value without the wrap.
    """

    address: int
    """The access's first address out of bounds."""
    first_outside: Callable[[TensorHandle, Mask], int | None]
    """Returns such an address of an access."""
    wrap: Wrap | None = None
    """What wrapped in the access's offset, if all lanes would be in bounds without it."""
    busy: bool = False

    def call(self, name: str, operation: Operation, args: tuple[Any, ...]) -> Any:
        """Return the result of an operation, with its wrap."""
        result = operation(*args)
        if REPEATABLE.fullmatch(name) and (wrap := _wrap(name, operation, args, result)):
            result.attr["wrap"] = wrap
        return result

    def access(self, verb: str, pointers: TensorHandle, mask: Mask, act: Act) -> Any:
        """Make an access.

        Raises:
            Ended: It is out of bounds, or atomic and so cannot be repeated.
        """
        address, wrap = self.first_outside(pointers, mask), pointers.attr.get("wrap")
        if address is None and verb != ATOMIC:
            return act()
        if wrap and address == self.address:
            unwrapped = TensorHandle(wrap.wide.data, pointers.dtype)
            self.wrap = wrap if self.first_outside(unwrapped, mask) is None else None
        raise Ended


def _wrap(
    name: str, operation: Operation, args: tuple[Any, ...], result: TensorHandle
) -> Wrap | None:
    """Return the result's new wrap, or an operand's earlier wrap with the values updated."""
    operands, dtype = handles(args), result.dtype.scalar
    earlier: Wrap | None = next((o.attr["wrap"] for o in operands if "wrap" in o.attr), None)
    if not earlier and not (dtype.is_int() and dtype.int_bitwidth == 32):
        return None
    narrows = name == "create_int_cast"
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
    if "wrap" in operand.attr:
        return operand.attr["wrap"].wide
    if operand.dtype.is_ptr():
        return operand
    return TensorHandle(operand.data.astype(np.int64), tl.int64)
