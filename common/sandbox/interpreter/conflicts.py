"""Conflicts: two programs of one launch, one of which changes an element that the other touches.

The result depends on the order of conflicting programs. Since every element of every access has to
be looked up, the search runs only in a case whose result differs between two orders.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import triton
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

from common import source
from common.sandbox.interpreter.spans import Span, element, selected, width_of
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


class Conflicts:
    """The first conflict of a call; a conflict of two atomics only if there is no other.

    The order of atomics changes only the rounding of a sum, or the result of a ticket counter.
    """

    def __init__(self) -> None:
        """Begin with no launch."""
        self._plain = self._atomic = Reason("")
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
        return self._plain if self._plain.text else self._atomic

    def access(
        self, verb: str, pointers: TensorHandle, mask: np.ndarray | None, act: Callable[[], Any]
    ) -> Any:
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
        if self._plain.text or earlier is None or earlier.program == access.program:
            return
        conflict = _describe(earlier, access, element(address, width, self._spans)[0])
        if earlier.verb == access.verb == ATOMIC:
            self._atomic = self._atomic if self._atomic.text else conflict
        else:
            self._plain = conflict


def _describe(first: Access, second: Access, element: str) -> Reason:
    if (first.verb, first.place) == (second.verb, second.place):
        both = f"programs {first.program} and {second.program} both"
        text = f"{both} {first.verb.removesuffix('s')} {element}, {first.place}"
        return Reason(text, (first.place,))
    then = f"which program {second.program} {second.verb}, {second.place}"
    text = f"program {first.program} {first.verb} {element}, {first.place}, {then}"
    return Reason(text, (first.place, second.place))


_NOT_A_KERNEL = tuple(os.path.dirname(path) + os.sep for path in (triton.__file__, __file__))
"""The folders of Triton and this package, whose frames lie between a check and the kernel."""


def kernel_place() -> Place:
    """Return the kernel's running expression: `line 12 of rope.py: tl.store(...)`."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(_NOT_A_KERNEL):
        frame = frame.f_back
    return source.of_frame(frame)
