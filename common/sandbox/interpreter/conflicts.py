"""Conflicts: two programs of one launch, one of which changes an element that the other touches.

The order of such programs shows in the result. Only a case whose result differs between two orders
is run once more to look for them, since every element of every access is then looked up.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

from common.sandbox.interpreter.fault_replay import kernel_line
from common.sandbox.interpreter.spans import Span, active, element, width_of

READS, WRITES, ATOMIC = "reads", "writes", "updates"
"""The verbs of accesses."""


class Access(NamedTuple):
    """One access of a program: `program (6, 4)`, `reads`, `line 31 of rope.py: tl.load(x)`."""

    program: tuple[int, ...]
    verb: str
    line: str

    @classmethod
    def now(cls, verb: str) -> Access:
        """Return the access that the running program makes."""
        builder = interpreter.interpreter_builder
        sizes = max((n for n, size in enumerate(builder.grid_dim, 1) if size > 1), default=1)
        return cls(builder.grid_idx[:sizes], verb, kernel_line())


class Conflicts:
    """The first conflict of a call, an atomic one only where there is no other.

    Only the rounding of an atomic sum, or a ticket, depends on the order of atomics.
    """

    def __init__(self) -> None:
        """Begin without a launch."""
        self._plain = self._atomic = ""
        self.begin_launch(())

    def begin_launch(self, spans: Sequence[Span]) -> None:
        """Forget all accesses: a launch begins when the one before has ended."""
        self._spans = spans
        self._read: dict[int, Access] = {}  # programs run one by one: the first reader is enough
        self._written: dict[int, Access] = {}
        self._changed: dict[int, Access] = {}

    @property
    def text(self) -> str:
        """The conflict as `programs (0,) and (1,) both write out + 64, line 12 of ...`, or ""."""
        return self._plain or self._atomic

    def around(
        self, verb: str, pointers: TensorHandle, mask: np.ndarray | None, act: Callable[[], Any]
    ) -> Any:
        """Make an access; a write that changes nothing disturbs no earlier access."""
        access, width = Access.now(verb), width_of(pointers)
        addresses = active(pointers, mask).ravel().tolist()
        if verb == READS:
            for address in addresses:
                self._compare(self._changed.get(address), access, address, width)
                self._read.setdefault(address, access)
            return act()
        before = [ctypes.string_at(address, width) for address in addresses]
        result = act()
        for address, was in zip(addresses, before, strict=True):
            if ctypes.string_at(address, width) != was:
                for accesses in (self._written, self._read):
                    self._compare(accesses.get(address), access, address, width)
                self._changed[address] = access
            self._written[address] = access
        return result

    def _compare(self, earlier: Access | None, access: Access, address: int, width: int) -> None:
        """Keep two accesses to one element if they are the first ones by different programs."""
        if self._plain or earlier is None or earlier.program == access.program:
            return
        text = _text(earlier, access, element(address, width, self._spans)[0])
        if earlier.verb == access.verb == ATOMIC:
            self._atomic = self._atomic or text
        else:
            self._plain = text


def _text(one: Access, other: Access, what: str) -> str:
    if (one.verb, one.line) == (other.verb, other.line):
        verb = one.verb.removesuffix("s")
        return f"programs {one.program} and {other.program} both {verb} {what}, {one.line}"
    then = f"which program {other.program} {other.verb}, {other.line}"
    return f"program {one.program} {one.verb} {what}, {one.line}, {then}"
