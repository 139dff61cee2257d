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
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from common.sandbox.interpreter import recorded_trace, spans, vectorized
from common.sandbox.interpreter.conflicts import ATOMIC, READS, WRITES, Access
from common.sandbox.interpreter.fault_replay import AccessLog as AccessLog
from common.sandbox.interpreter.fault_replay import FaultReplay
from common.sandbox.interpreter.language import annotated
from common.sandbox.interpreter.recorded_trace import TracedProgram
from common.sandbox.interpreter.spans import (
    Method,
    Span,
    active,
    alive,
    bare,
    element,
    extent,
    spans_of,
    width_of,
)
from common.sandbox.interpreter.wrap import wrap

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
    trace: recorded_trace.RecordedTrace | FaultReplay
    """The operations of one program, which the others replay."""
    program: TracedProgram | None = None
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


class Observer(Protocol):
    """A watcher of accesses: it looks for conflicts of programs, or counts their traffic."""

    def begin_launch(self, spans: tuple[Span, ...]) -> None:
        """Begin a launch with these arguments."""

    def around(
        self, verb: str, pointers: TensorHandle, mask: np.ndarray | None, act: Callable[[], Any]
    ) -> Any:
        """Make an access, and return its result."""


@dataclass
class Watch:
    """The memory that the running launch may touch, and the log of accesses outside of it."""

    inputs: tuple[Span, ...] = ()
    """The graded call's arguments; see `spans_of`."""
    backwards: bool = False
    """Programs run from the last to the first, since a kernel must not rely on their order."""
    launch: Launch | None = None
    log: AccessLog = field(default_factory=AccessLog)
    observer: Observer | None = None
    """What is told of each access, if anything."""
    traces: recorded_trace.TraceCache = field(default_factory=recorded_trace.TraceCache)
    """The traces of earlier launches."""

    def begin_call(self, tensors: dict[str, torch.Tensor], backwards: bool = False) -> AccessLog:
        """Begin a graded call with these arguments; return the log that it fills."""
        self.backwards = backwards
        self.inputs = tuple(extent(name, tensor) for name, tensor in tensors.items())
        self.log, self.observer = AccessLog(), None
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
            if self.launch.trace.replaying:  # the kernel's Python comes to it again, and says where
                self.log.add("")
                raise recorded_trace.LeftTrace(address)
            origins, wrapped = self._comes_of(address, pointers, mask)
            spans = tuple(span for span in spans if span.name in origins) or spans
            fault = self.launch.outside(Access.now(verb), address, width, spans, wrapped)
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
        look = FaultReplay(launch.program.arguments)
        self.launch = launch._replace(trace=look)
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
        assert isinstance(self.launch.trace, recorded_trace.RecordedTrace)
        return vectorized.play(self.launch.trace, programs, self.within)

    def access(
        self, verb: str, pointers: TensorHandle, mask: np.ndarray | None, act: Callable[[], Any]
    ) -> Any:
        """Make an access whose addresses are checked first."""
        self.check(verb, pointers, mask)
        return self.observer.around(verb, pointers, mask, act) if self.observer else act()


WATCH = Watch()


def watch_memory() -> None:
    """Patch the interpreter so that `WATCH` checks each access and orders the programs."""
    spans.track()
    _watch_accesses()
    _watch_launches()
    recorded_trace.install(_recorded)


def _watch_accesses() -> None:
    wrap(InterpreterBuilder, "create_masked_load", _load)
    wrap(InterpreterBuilder, "create_masked_store", _store)
    wrap(InterpreterBuilder, "create_atomic_rmw", _rmw)
    wrap(InterpreterBuilder, "create_atomic_cas", _cas)


def _load(method: Method, builder: Any, ptrs: Any, mask: Any, *args: Any, **named: Any) -> Any:
    act = functools.partial(method, builder, ptrs, _handle(mask), *args, **named)
    return WATCH.access(READS, ptrs, bare(mask), act)


def _store(method: Method, builder: Any, ptrs: Any, value: Any, mask: Any, *args: Any) -> Any:
    act = functools.partial(method, builder, ptrs, value, _handle(mask), *args)
    return WATCH.access(WRITES, ptrs, bare(mask), act)


def _rmw(
    method: Method, builder: Any, kind: Any, ptr: Any, value: Any, mask: Any, *args: Any
) -> Any:
    act = functools.partial(method, builder, kind, ptr, value, mask, *args)
    return WATCH.access(ATOMIC, ptr, mask.data, act)


def _cas(method: Method, builder: Any, ptr: Any, *args: Any) -> Any:
    return WATCH.access(ATOMIC, ptr, None, functools.partial(method, builder, ptr, *args))


def _recorded(method: Callable[..., Any], effect: bool) -> Callable[..., Any]:
    @functools.wraps(method)
    def operation(self: Any, *args: Any, **kwargs: Any) -> Any:
        launch = WATCH.launch
        if launch is None or not launch.trace.listening:
            return method(self, *args, **kwargs)
        return launch.trace.call(method, effect, (self, *args), kwargs)

    return operation


_LAUNCHING = threading.Lock()
"""Held by the one thread that interprets: the interpreter keeps a launch in globals of its own."""


def _watch_launches() -> None:
    wrap(interpreter.GridExecutor, "__call__", _launch)
    wrap(InterpreterBuilder, "set_grid_idx", _set_program)


def _launch(run: Callable[..., None], executor: Any, *args: Any, **options: Any) -> None:
    with _LAUNCHING:
        arguments, launch = begin_launch(executor, args, options)
        # as on a GPU: the interpreter would hand over tensors in the place of numbers
        grid = executor.grid
        executor.grid = tuple(grid(arguments) if callable(grid) else grid)
        key = recorded_trace.key_of(executor.fn, arguments, executor.constexprs)
        if not WATCH.observer:  # the line of an access is known while the kernel's own Python runs
            taken = WATCH.traces.take(key)
            executor.fn = program = TracedProgram(executor.fn, taken, key is not None, WATCH.rest)
            launch = launch._replace(trace=taken, program=program)
        WATCH.launch = launch
        try:
            with np.errstate(all="ignore"):  # a GPU does not warn of a NaN either
                run(executor, **annotated(executor.fn, arguments))
            if isinstance(launch.trace, recorded_trace.RecordedTrace):
                WATCH.traces.keep(key, launch.trace)
        finally:
            if WATCH.launch is not launch:
                WATCH.log.add("the kernel replaced what its launch may touch")
            WATCH.launch = None


def begin_launch(
    executor: Any, args: Sequence[Any], options: Mapping[str, Any]
) -> tuple[dict[str, Any], Launch]:
    """Return the arguments by name of a launch with these options, and what it may touch."""
    named = {name: value for name, value in options.items() if name in executor.arg_names}
    arguments = inspect.getcallargs(executor.fn, *args, **named)
    inputs = WATCH.inputs
    spans = tuple(s for name, value in arguments.items() for s in spans_of(name, value, inputs))
    live = functools.cache(functools.partial(alive, spans, inputs))
    integers = {
        name: value
        for name, value in arguments.items()
        if type(value) is int and name not in executor.constexprs
    }
    if WATCH.observer:
        WATCH.observer.begin_launch(spans)
    return arguments, Launch(spans, integers, live, set(), recorded_trace.RecordedTrace())


def _set_program(method: Callable[..., None], builder: Any, *program: int) -> None:
    if WATCH.backwards:
        program = tuple(n - 1 - i for i, n in zip(program, builder.grid_dim, strict=True))
    method(builder, *program)


def _handle(mask: Any) -> TensorHandle:
    return mask if isinstance(mask, TensorHandle) else TensorHandle(mask, tl.int1)
