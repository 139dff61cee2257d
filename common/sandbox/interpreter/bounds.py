"""Address checks: every lane's address is held against the tensors that its launch may touch.

Those are the launch's arguments, and every live tensor for an address that the kernel loaded (see
`spans.LoadedPointer`). Triton's interpreter reads and writes wherever a kernel points.
`watch_memory()` patches its loads, stores and atomics, so that each address is checked first;
`WATCH` holds what the running launch may touch and logs each access outside of it.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from common.sandbox.interpreter import spans, tape, together
from common.sandbox.interpreter.conflicts import ATOMIC, Access, Conflicts
from common.sandbox.interpreter.language import annotated
from common.sandbox.interpreter.second_look import AccessLog as AccessLog
from common.sandbox.interpreter.second_look import SecondLook, kernel_line
from common.sandbox.interpreter.spans import (
    Span,
    active,
    alive,
    bare,
    element,
    extent,
    spans_of,
    width_of,
)
from common.sandbox.interpreter.tape import Program

READS = "reads"
SHOWN = 6
"""The integer arguments that a report shows: sizes come first, and strides after them. Where an
offset wrapped, those of the expression that wrapped stand in their place."""


class OutOfBounds(Exception):
    """A lane's address lies in no memory that the launch may touch."""


class Launch(NamedTuple):
    """The launch that runs now."""

    spans: tuple[Span, ...]
    """The memory that its kernel may touch through its arguments."""
    integers: Mapping[str, int]
    """Its integer arguments by name; no constants of compilation."""
    alive: Callable[[], tuple[Span, ...]]
    """Returns the memory that it may touch through addresses which it loaded."""
    patched: set[Any]
    """The functions whose language Triton has patched in this launch."""
    tape: tape.Tape | SecondLook
    """The operations of one program, which the others replay."""
    program: Program | None = None
    """What runs its programs, if one of them can run once more."""

    def holds(self, addresses: np.ndarray, width: int) -> bool:
        """Return whether all addresses lie in one span; each is that of `width` bytes."""
        first = int(np.minimum.reduce(addresses, axis=None))
        end = int(np.maximum.reduce(addresses, axis=None)) + width
        return any(span.holds(first, end) for span in self.spans)

    def reached_by(self, pointers: TensorHandle) -> tuple[Span, ...]:
        """Return the memory that the pointers may lead to."""
        return self.alive() if spans.is_loaded(pointers) else self.spans

    def outside(
        self, access: Access, address: int, width: int, spans: Sequence[Span], wrapped: str
    ) -> str:
        """Describe an access: `program (6, 4), M=70, K=24: reads b + 2816 of 2800, line 31 ...`.

        Args:
            access: The access.
            address: The address, of `width` bytes, that lies outside.
            width: The bytes of an element.
            spans: The memory that it should have led to; the nearest is named.
            wrapped: The product or sum that wrapped in the address's offset, "" for none.
        """
        product = wrapped.partition(".py: ")[2]
        names = [name for name in self.integers if re.search(rf"\b{name}\b", product)]
        shown = names if wrapped else [*self.integers][:SHOWN]
        integers = [f"{name}={self.integers[name]}" for name in shown]
        who = ", ".join((f"program {access.program}", *integers))
        where = "memory in a launch without tensors"
        if spans:
            where = " of ".join(element(address, width, spans))
        why = f", since its offset wrapped: {wrapped}" if wrapped else ""
        return f"{who}: {access.verb} {where}, {access.line}{why}"


@dataclass
class Watch:
    """The memory that the running launch may touch, and the log of accesses outside of it."""

    inputs: tuple[Span, ...] = ()
    """The graded call's arguments; see `spans_of`."""
    backwards: bool = False
    """Programs run from the last to the first, since a kernel must not rely on their order."""
    launch: Launch | None = None
    log: AccessLog = field(default_factory=AccessLog)
    conflicts: Conflicts | None = None
    """Conflicts of programs, if the call is made to find them."""
    tapes: tape.Tapes = field(default_factory=tape.Tapes)
    """The tapes of earlier launches."""

    def begin_call(self, tensors: dict[str, torch.Tensor], backwards: bool = False) -> AccessLog:
        """Begin a graded call with these arguments; return the log that it fills."""
        self.backwards = backwards
        self.inputs = tuple(extent(name, tensor) for name, tensor in tensors.items())
        self.log, self.conflicts = AccessLog(), None
        return self.log

    def check(self, verb: str, pointers: TensorHandle, mask: np.ndarray | None) -> None:
        """Check the addresses of all active lanes.

        Raises:
            OutOfBounds: A lane leaves the launch's memory. The log keeps it as well, since a
                solution may swallow the exception.
        """
        if self.launch is None or self.within(pointers, mask):
            return
        addresses, width = active(pointers, mask), width_of(pointers)
        spans = self.launch.reached_by(pointers)
        outside = np.ones(addresses.shape, dtype=bool)
        for span in spans:
            outside &= (addresses < span.first) | (addresses + np.uint64(width) > span.end)
        if outside.any():
            address = int(addresses[outside].flat[0])
            if self.launch.tape.replaying:  # the kernel's Python comes to it again, and says where
                self.log.add("")
                raise tape.Left(address)
            origins, wrapped = self._comes_of(address, pointers, mask)
            spans = tuple(span for span in spans if span.name in origins) or spans
            fault = self.launch.outside(_access(verb), address, width, spans, wrapped)
            self.log.add(fault)
            raise OutOfBounds(fault)

    def _comes_of(
        self, address: int, pointers: TensorHandle, mask: np.ndarray | None
    ) -> tuple[Collection[str], str]:
        """Return the arguments that an address outside was made of, and what its offset wrapped in.

        A wrap is named only if all lanes would lie inside without it.
        """
        launch = self.launch
        assert launch
        if not launch.program or spans.is_loaded(pointers):
            return (), ""
        look = SecondLook(launch.program.arguments)
        self.launch = launch._replace(tape=look)
        try:
            found = look.finds(launch.program.again, address)
        finally:
            self.launch = launch
        if not found:
            return (), ""
        wrap = look.wrap
        if wrap and self.within(TensorHandle(wrap.wide.data, pointers.dtype), mask):
            return look.origins, wrap.words
        return look.origins, ""

    def within(self, pointers: TensorHandle, mask: np.ndarray | None) -> bool:
        """Return whether the addresses of all active lanes lie in one tensor of the launch."""
        assert self.launch
        addresses, width = pointers.data, width_of(pointers)
        # switched-off lanes too, as in most launches
        if not addresses.size or self.launch.holds(addresses, width):
            return True
        addresses = active(pointers, mask)
        return not addresses.size or self.launch.holds(addresses, width)

    def rest(self, count: int) -> bool:
        """Run all programs of the launch but so many together; return whether they ran."""
        if self.launch is None:  # the kernel replaced it, which is a fault
            return False
        sizes = interpreter.interpreter_builder.grid_dim
        places = np.arange(count, math.prod(sizes))
        programs = np.stack(np.unravel_index(places, sizes), axis=1)
        if self.backwards:
            programs = np.array(sizes) - 1 - programs
        assert isinstance(self.launch.tape, tape.Tape)
        return together.play(self.launch.tape, programs, self.within)

    def around(
        self, verb: str, pointers: TensorHandle, mask: np.ndarray | None, act: Callable[[], Any]
    ) -> Any:
        """Make an access whose addresses were checked, and look for conflicts if asked to."""
        if self.conflicts is None:
            return act()
        known = _access(verb), active(pointers, mask).ravel().tolist(), width_of(pointers)
        if verb != READS:
            return self.conflicts.around(*known, act)
        self.conflicts.reads(*known)
        return act()


WATCH = Watch()


def _access(verb: str) -> Access:
    """Return the access that the running program makes."""
    builder = interpreter.interpreter_builder
    sizes = max((n for n, size in enumerate(builder.grid_dim, 1) if size > 1), default=1)
    return Access(builder.grid_idx[:sizes], verb, kernel_line())


def watch_memory() -> None:
    """Patch the interpreter so that `WATCH` checks each access and orders the programs."""
    spans.track()
    _watch_accesses()
    _watch_launches()
    tape.install(_recorded)


def _watch_accesses() -> None:
    builder = InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store
    rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas

    def watched_load(self: Any, ptrs: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
        WATCH.check(READS, ptrs, bare(mask))
        if WATCH.conflicts is None:  # as nearly always, and without a further call
            return load(self, ptrs, _handle(mask), *args, **kwargs)
        act = functools.partial(load, self, ptrs, _handle(mask), *args, **kwargs)
        return WATCH.around(READS, ptrs, bare(mask), act)

    def watched_store(self: Any, ptrs: Any, value: Any, mask: Any, *args: Any) -> Any:
        WATCH.check("writes", ptrs, bare(mask))
        if WATCH.conflicts is None:
            return store(self, ptrs, value, _handle(mask), *args)
        act = functools.partial(store, self, ptrs, value, _handle(mask), *args)
        return WATCH.around("writes", ptrs, bare(mask), act)

    def watched_rmw(self: Any, kind: Any, ptr: Any, value: Any, mask: Any, *args: Any) -> Any:
        WATCH.check(ATOMIC, ptr, mask.data)
        act = functools.partial(rmw, self, kind, ptr, value, mask, *args)
        return WATCH.around(ATOMIC, ptr, mask.data, act)

    def watched_cas(self: Any, ptr: Any, *args: Any) -> Any:
        WATCH.check(ATOMIC, ptr, None)
        return WATCH.around(ATOMIC, ptr, None, functools.partial(cas, self, ptr, *args))

    builder.create_masked_load, builder.create_masked_store = watched_load, watched_store
    builder.create_atomic_rmw, builder.create_atomic_cas = watched_rmw, watched_cas


def _recorded(method: Callable[..., Any], effect: bool) -> Callable[..., Any]:
    @functools.wraps(method)
    def operation(self: Any, *args: Any, **kwargs: Any) -> Any:
        launch = WATCH.launch
        if launch is None or not launch.tape.listening:
            return method(self, *args, **kwargs)
        return launch.tape.call(method, effect, (self, *args), kwargs)

    return operation


_LAUNCHING = threading.Lock()
"""Held by the one thread that interprets: the interpreter keeps a launch in globals of its own."""


def _watch_launches() -> None:
    builder, executor = InterpreterBuilder, interpreter.GridExecutor
    run, set_program = executor.__call__, builder.set_grid_idx

    def watched_run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _LAUNCHING:
            return watched_alone(self, *args, **kwargs)

    def watched_alone(self: Any, *args: Any, **kwargs: Any) -> Any:
        named = {key: value for key, value in kwargs.items() if key in self.arg_names}
        arguments = inspect.getcallargs(self.fn, *args, **named)
        # as on a GPU: the interpreter would hand over tensors in the place of numbers
        self.grid = tuple(self.grid(arguments) if callable(self.grid) else self.grid)
        inputs = WATCH.inputs
        spans = tuple(s for name, value in arguments.items() for s in spans_of(name, value, inputs))
        live = functools.cache(functools.partial(alive, spans, inputs))
        integers = _integers(arguments, self.constexprs)
        program: Program | None = None
        key = tape.key_of(self.fn, arguments, self.constexprs)
        taken = tape.Tape() if WATCH.conflicts else WATCH.tapes.take(key)
        if WATCH.conflicts:  # the line of an access is known while the kernel's own Python runs
            WATCH.conflicts.begin_launch(spans)
        else:
            self.fn = program = Program(self.fn, taken, key is not None, WATCH.rest)
        WATCH.launch = launch = Launch(spans, integers, live, set(), taken, program)
        try:
            with np.errstate(all="ignore"):  # a GPU does not warn of a NaN either
                run(self, **annotated(self.fn, arguments))
            WATCH.tapes.keep(key, taken, launch.patched)
        finally:
            if WATCH.launch is not launch:
                WATCH.log.add("the kernel replaced what its launch may touch")
            WATCH.launch = None

    def ordered(self: Any, *program: int) -> None:
        if WATCH.backwards:
            program = tuple(n - 1 - i for i, n in zip(program, self.grid_dim, strict=True))
        set_program(self, *program)

    executor.__call__, builder.set_grid_idx = watched_run, ordered


def _integers(arguments: Mapping[str, Any], constants: Collection[str]) -> dict[str, int]:
    """Return the integer arguments of a launch by name."""
    return {
        name: value
        for name, value in arguments.items()
        if type(value) is int and name not in constants
    }


def _handle(mask: Any) -> TensorHandle:
    return mask if isinstance(mask, TensorHandle) else TensorHandle(mask, tl.int1)
