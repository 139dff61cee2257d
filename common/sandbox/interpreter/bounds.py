"""Address checks: every lane's address is held against the tensors that its launch may touch.

Those are the launch's arguments, and every live tensor for an address that the kernel loaded (see
`provenance`). Triton's interpreter reads and writes wherever a kernel points. `watch_memory()`
patches its loads, stores and atomics, so that each address is checked first; `WATCH` holds what the
running launch may touch and logs each access outside of it.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import linecache
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
from triton.runtime.jit import TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from common.sandbox.interpreter import provenance, tape


class OutOfBounds(Exception):
    """A lane's address lies in no memory that the launch may touch."""


class Span(NamedTuple):
    """A named range of addresses, from `first` up to but without `end`."""

    name: str
    first: int
    end: int

    def distance(self, address: int) -> int:
        """Return the bytes between the span and the address, 0 if the address lies in it."""
        return max(self.first - address, address - self.end + 1, 0)


class Launch(NamedTuple):
    """The launch that runs now."""

    spans: tuple[Span, ...]
    """The memory that its kernel may touch through its arguments."""
    alive: Callable[[], tuple[Span, ...]]
    """Returns the memory that it may touch through addresses which it loaded."""
    patched: set[Any]
    """The functions whose language Triton has patched in this launch."""
    tape: tape.Tape
    """The operations of the first program, which the others replay."""

    def holds(self, addresses: np.ndarray, width: int) -> bool:
        """Return whether all addresses lie in one span; each is that of `width` bytes."""
        first, end = int(addresses.min()), int(addresses.max()) + width
        return any(span.first <= first and end <= span.end for span in self.spans)

    def reached_by(self, pointers: TensorHandle) -> tuple[Span, ...]:
        """Return the memory that the pointers may lead to."""
        return self.alive() if provenance.is_loaded(pointers) else self.spans


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


@dataclass
class Watch:
    """The memory that the running launch may touch, and the log of accesses outside of it."""

    inputs: tuple[Span, ...] = ()
    """The graded call's arguments. A kernel argument inside one of them may touch all of that one;
    any other kernel argument may touch its own storage."""
    backwards: bool = False
    """Programs run from the last to the first, since a kernel must not rely on their order."""
    launch: Launch | None = None
    log: AccessLog = field(default_factory=AccessLog)

    def begin_call(self, tensors: dict[str, torch.Tensor], backwards: bool = False) -> AccessLog:
        """Begin a graded call with these arguments; return the log that it fills."""
        self.backwards = backwards
        self.inputs = tuple(_extent(name, tensor) for name, tensor in tensors.items())
        self.log = AccessLog()
        return self.log

    def check(self, access: str, pointers: TensorHandle, mask: np.ndarray | None) -> None:
        """Check the addresses of all active lanes.

        Raises:
            OutOfBounds: A lane leaves the launch's memory. The log keeps it as well, since a
                solution may swallow the exception.
        """
        addresses = pointers.data
        if self.launch is None or not addresses.size:
            return
        width = max(pointers.get_element_ty().primitive_bitwidth // 8, 1)
        if self.launch.holds(addresses, width):  # switched-off lanes too, as in most launches
            return
        if mask is not None:
            addresses = np.broadcast_to(addresses, np.broadcast_shapes(addresses.shape, mask.shape))
            addresses = addresses[np.broadcast_to(mask, addresses.shape)]
        if not addresses.size or self.launch.holds(addresses, width):
            return
        spans = self.launch.reached_by(pointers)
        outside = np.ones(addresses.shape, dtype=bool)
        for span in spans:
            outside &= (addresses < span.first) | (addresses + np.uint64(width) > span.end)
        if outside.any():
            if self.launch.tape.replaying:  # the kernel's Python comes to it again, and says where
                self.log.add("")
                raise tape.Left
            fault = _describe(access, int(addresses[outside].flat[0]), width, spans)
            self.log.add(fault)
            raise OutOfBounds(fault)


def _describe(access: str, address: int, width: int, spans: tuple[Span, ...]) -> str:
    where = _kernel_line()
    if not spans:
        return f"{access} memory in a launch without tensors, {where}"
    nearest = min(spans, key=lambda span: span.distance(address))
    first, size = address - nearest.first, nearest.end - nearest.first
    what = f"{access} bytes {first} to {first + width} of {nearest.name}, which has {size}"
    return f"{what}, {where}"


WATCH = Watch()


def _extent(name: str, tensor: torch.Tensor) -> Span:
    """Return the span from a view's first element to the end of its last one."""
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    elements = last + 1 if tensor.numel() else 0
    first = tensor.data_ptr()
    return Span(name, first, first + elements * tensor.element_size())


def _spans(name: str, argument: Any) -> Iterator[Span]:
    """Yield the memory that a kernel may touch through one argument of its launch."""
    if isinstance(argument, tuple):
        for index, part in enumerate(argument):
            yield from _spans(f"{name}[{index}]", part)
    elif isinstance(argument, TensorDescriptor | TensorWrapper):
        yield from _spans(name, argument.base)
    elif isinstance(argument, torch.Tensor):
        pointer = argument.data_ptr()
        known = [span for span in WATCH.inputs if span.first <= pointer < span.end]
        if known:
            yield Span(name, known[0].first, known[0].end)
        elif any(pointer == span.first == span.end for span in WATCH.inputs):
            yield Span(name, pointer, pointer)
        else:
            storage = argument.untyped_storage()
            yield Span(name, storage.data_ptr(), storage.data_ptr() + storage.nbytes())


def _alive(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    """Return a launch's own spans, and those of every tensor that is alive."""
    tensors = provenance.live_tensors()
    return tuple({*spans, *(span for each in tensors for span in _spans("a live tensor", each))})


_NOT_A_KERNEL = tuple(os.path.dirname(path) + os.sep for path in (triton.__file__, __file__))
"""The folders of Triton and of this package, whose frames stand between a check and a kernel."""


def _kernel_line() -> str:
    """Return the kernel's line that runs now: `line 12 of rope.py: tl.store(...)`."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(_NOT_A_KERNEL):
        frame = frame.f_back
    path, line = frame.f_code.co_filename, frame.f_lineno
    source = linecache.getline(path, line).strip()
    return f"line {line} of {os.path.basename(path)}: {source}"


def watch_memory() -> None:
    """Patch the interpreter so that `WATCH` checks each access and orders the programs."""
    provenance.track()
    _watch_accesses()
    _watch_launches()
    tape.install(_recorded)


def _watch_accesses() -> None:
    builder = InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store
    rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas

    def watched_load(self: Any, ptrs: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
        WATCH.check("reads", ptrs, _bare(mask))
        return load(self, ptrs, _handle(mask), *args, **kwargs)

    def watched_store(self: Any, ptrs: Any, value: Any, mask: Any, *args: Any) -> Any:
        WATCH.check("writes", ptrs, _bare(mask))
        return store(self, ptrs, value, _handle(mask), *args)

    def watched_rmw(self: Any, kind: Any, ptr: Any, value: Any, mask: Any, *args: Any) -> Any:
        WATCH.check("updates", ptr, mask.data)
        return rmw(self, kind, ptr, value, mask, *args)

    def watched_cas(self: Any, ptr: Any, *args: Any) -> Any:
        WATCH.check("updates", ptr, None)
        return cas(self, ptr, *args)

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
        spans = tuple(span for name, value in arguments.items() for span in _spans(name, value))
        alive = functools.cache(functools.partial(_alive, spans))
        WATCH.launch = launch = Launch(spans, alive, set(), tape.Tape())
        self.fn = tape.Program(self.fn, launch.tape)
        try:
            with np.errstate(all="ignore"):  # a GPU does not warn of a NaN either
                return run(self, *args, **kwargs)
        finally:
            if WATCH.launch is not launch:
                WATCH.log.add("the kernel replaced what its launch may touch")
            WATCH.launch = None

    def ordered(self: Any, *program: int) -> None:
        if WATCH.backwards:
            program = tuple(n - 1 - i for i, n in zip(program, self.grid_dim, strict=True))
        set_program(self, *program)

    executor.__call__, builder.set_grid_idx = watched_run, ordered


def _bare(mask: Any) -> np.ndarray:
    """Return the mask as an array; a block pointer's is one already, any other is a handle."""
    array: np.ndarray = mask.data if isinstance(mask, TensorHandle) else mask
    return array


def _handle(mask: Any) -> TensorHandle:
    return mask if isinstance(mask, TensorHandle) else TensorHandle(mask, tl.int1)
