"""Bounds checks: every lane's address must lie in a tensor that its launch may touch.

A launch may touch its arguments and, through an address that the kernel loaded, every live tensor
(see `spans.LoadedPointer`). Triton's interpreter reads and writes any address without a check.
`watch_memory()` patches its loads, stores and atomics, so that each address is checked first.
`WATCH` holds the memory of the running launch and logs each out-of-bounds access.
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

from common.sandbox.compiled import target
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
"""The number of integer arguments in a report: kernels take sizes first and strides after them. If
an offset wrapped, the report shows the arguments in the wrapped expression instead."""


class OutOfBounds(Exception):
    """A lane's address lies outside the memory that the launch may touch."""

    wrapped = False
    """Whether the address would be inside if a product or sum of its offset had not wrapped."""


class Launch(NamedTuple):
    """The running launch."""

    spans: tuple[Span, ...]
    """The memory that its kernel may touch through its arguments."""
    integers: Mapping[str, int]
    """Its integer arguments by name, without constexprs."""
    alive: Callable[[], tuple[Span, ...]]
    """Returns the memory that the kernel may touch through addresses that it loaded."""
    patched: set[Any]
    """The functions for which Triton has patched its language in this launch."""
    trace: recorded_trace.RecordedTrace | FaultReplay
    """The operations of the first program, which the other programs replay."""
    program: TracedProgram | None = None
    """Runs the programs; None if a program cannot be repeated."""

    def holds(self, addresses: np.ndarray, width: int) -> bool:
        """Return whether one span holds `width` bytes at every address."""
        first = int(np.minimum.reduce(addresses, axis=None))
        end = int(np.maximum.reduce(addresses, axis=None)) + width
        return any(span.holds(first, end) for span in self.spans)

    def reached_by(self, pointers: TensorHandle) -> tuple[Span, ...]:
        """Return the memory that the pointers may point into."""
        return self.alive() if spans.is_loaded(pointers) else self.spans

    def outside(
        self, access: Access, address: int, width: int, spans: Sequence[Span], wrapped: str
    ) -> str:
        """Describe an access: `program (6, 4), M=70, K=24: reads b + 2816 of 2800, line 31 ...`.

        Args:
            access: The access.
            address: The out-of-bounds address.
            width: The bytes of an element.
            spans: The memory that the access may touch; the text names the nearest span.
            wrapped: The product or sum in the address's offset that wrapped, "" for none.
        """
        product = wrapped.partition(".py: ")[2]
        names = [name for name in self.integers if re.search(rf"\b{name}\b", product)]
        shown = names if wrapped else [*self.integers][:SHOWN]
        integers = [f"{name}={self.integers[name]}" for name in shown]
        program = ", ".join((f"program {access.program}", *integers))
        place = "memory in a launch without tensors"
        if spans:
            place = " of ".join(element(address, width, spans))
        reason = f", since its offset wrapped: {wrapped}" if wrapped else ""
        return f"{program}: {access.verb} {place}, {access.line}{reason}"


class Observer(Protocol):
    """An observer of accesses, which looks for conflicting programs or counts traffic."""

    def begin_launch(self, spans: tuple[Span, ...]) -> None:
        """Begin a launch whose arguments span this memory."""

    def around(
        self, verb: str, pointers: TensorHandle, mask: np.ndarray | None, act: Callable[[], Any]
    ) -> Any:
        """Make an access by calling `act`; return its result."""


@dataclass
class Watch:
    """The memory that the running launch may touch, and the log of out-of-bounds accesses."""

    inputs: tuple[Span, ...] = ()
    """The graded call's arguments; see `spans_of`."""
    backwards: bool = False
    """Run programs from the last to the first, since a kernel must not rely on their order."""
    launch: Launch | None = None
    log: AccessLog = field(default_factory=AccessLog)
    observer: Observer | None = None
    """Receives each access, if set."""
    traces: recorded_trace.TraceCache = field(default_factory=recorded_trace.TraceCache)
    """The traces of earlier launches."""

    def begin_call(self, tensors: dict[str, torch.Tensor], backwards: bool = False) -> AccessLog:
        """Begin a graded call with these arguments; return the log of its accesses."""
        self.backwards = backwards
        self.inputs = tuple(extent(name, tensor) for name, tensor in tensors.items())
        self.log, self.observer = AccessLog(), None
        return self.log

    def check(self, verb: str, pointers: TensorHandle, mask: np.ndarray | None) -> None:
        """Check the addresses of all active lanes.

        Raises:
            OutOfBounds: An address lies outside the launch's memory. The log keeps the fault too,
                since a solution may swallow the exception.
            ReplayFailed: The same, while the program is replayed from a trace.
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
            if self.launch.trace.replaying:  # the kernel's Python repeats it with a line number
                self.log.add("")
                raise recorded_trace.ReplayFailed(address)
            origins, wrapped = self._explain(address, pointers, mask)
            spans = tuple(span for span in spans if span.name in origins) or spans
            fault = self.launch.outside(Access.now(verb), address, width, spans, wrapped)
            self.log.add(fault)
            error = OutOfBounds(fault)
            error.wrapped = bool(wrapped)
            raise error

    def _explain(
        self, address: int, pointers: TensorHandle, mask: np.ndarray | None
    ) -> tuple[Collection[str], str]:
        """Return the arguments that an out-of-bounds address comes from, and its offset's wrap.

        The wrap is "" unless all lanes would be in bounds without it.
        """
        launch = self.launch
        assert launch
        if not launch.program or spans.is_loaded(pointers):
            return (), ""
        replay = FaultReplay(launch.program.arguments)
        self.launch = launch._replace(trace=replay)
        try:
            reproduced = replay.finds(launch.program.again, address)
        finally:
            self.launch = launch
        if not reproduced:
            return (), ""
        wrap = replay.wrap
        if wrap and self.within(TensorHandle(wrap.wide.data, pointers.dtype), mask):
            return replay.origins, wrap.words
        return replay.origins, ""

    def within(self, pointers: TensorHandle, mask: np.ndarray | None) -> bool:
        """Return whether the addresses of all active lanes lie in the same tensor of the launch."""
        assert self.launch
        addresses, width = pointers.data, width_of(pointers)
        # in most launches masked lanes are in bounds too, and the mask need not be applied
        if not addresses.size or self.launch.holds(addresses, width):
            return True
        addresses = active(pointers, mask)
        return not addresses.size or self.launch.holds(addresses, width)

    def rest(self, count: int) -> bool:
        """Run the programs after the first `count` vectorized; return whether they ran."""
        if self.launch is None:  # the kernel replaced it, which is a fault
            return False
        sizes = interpreter.interpreter_builder.grid_dim
        indices = np.arange(count, math.prod(sizes))
        programs = np.stack(np.unravel_index(indices, sizes), axis=1)
        if self.backwards:
            programs = np.array(sizes) - 1 - programs
        assert isinstance(self.launch.trace, recorded_trace.RecordedTrace)
        return vectorized.play(self.launch.trace, programs, self.within)

    def access(
        self, verb: str, pointers: TensorHandle, mask: np.ndarray | None, act: Callable[[], Any]
    ) -> Any:
        """Check an access's addresses, then make the access."""
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
    act = functools.partial(method, builder, ptrs, _mask_handle(mask), *args, **named)
    return WATCH.access(READS, ptrs, bare(mask), act)


def _store(method: Method, builder: Any, ptrs: Any, value: Any, mask: Any, *args: Any) -> Any:
    act = functools.partial(method, builder, ptrs, value, _mask_handle(mask), *args)
    return WATCH.access(WRITES, ptrs, bare(mask), act)


def _rmw(method: Method, builder: Any, op: Any, ptr: Any, value: Any, mask: Any, *args: Any) -> Any:
    act = functools.partial(method, builder, op, ptr, value, mask, *args)
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
"""Lets one thread interpret at a time: the interpreter keeps a launch in its own globals."""


def _watch_launches() -> None:
    wrap(interpreter.GridExecutor, "__call__", _launch)
    wrap(InterpreterBuilder, "set_grid_idx", _set_program)


def _launch(run: Callable[..., None], executor: Any, *args: Any, **options: Any) -> None:
    with _LAUNCHING:
        arguments, launch = begin_launch(executor, args, options)
        # `grid` gets numbers, as on a GPU; the interpreter would pass tensors
        grid = executor.grid
        executor.grid = target.checked(grid(arguments) if callable(grid) else grid)
        key = recorded_trace.key_of(executor.fn, arguments, executor.constexprs)
        if not WATCH.observer:  # an observer needs each access's line, which a replay does not have
            trace = WATCH.traces.take(key)
            executor.fn = program = TracedProgram(executor.fn, trace, key is not None, WATCH.rest)
            launch = launch._replace(trace=trace, program=program)
        WATCH.launch = launch
        try:
            with np.errstate(all="ignore"):  # a GPU does not warn about a NaN either
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
    """Return a launch's arguments by name, and the launch with the memory that it may touch."""
    named = {name: value for name, value in options.items() if name in executor.arg_names}
    arguments = inspect.getcallargs(executor.fn, *args, **named)
    inputs = WATCH.inputs
    spans = tuple(s for name, value in arguments.items() for s in spans_of(name, value, inputs))
    cached_alive = functools.cache(functools.partial(alive, spans, inputs))
    integers = {
        name: value
        for name, value in arguments.items()
        if type(value) is int and name not in executor.constexprs
    }
    if WATCH.observer:
        WATCH.observer.begin_launch(spans)
    trace = recorded_trace.RecordedTrace()
    return arguments, Launch(spans, integers, cached_alive, set(), trace)


def _set_program(method: Callable[..., None], builder: Any, *program: int) -> None:
    if WATCH.backwards:
        program = tuple(n - 1 - i for i, n in zip(program, builder.grid_dim, strict=True))
    method(builder, *program)


def _mask_handle(mask: Any) -> TensorHandle:
    return mask if isinstance(mask, TensorHandle) else TensorHandle(mask, tl.int1)
