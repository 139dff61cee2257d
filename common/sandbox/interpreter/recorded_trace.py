"""The trace of a launch: its first program records the operations, and the others replay them.

Triton's front end takes fifty microseconds for an operation whose arithmetic takes five, in each
program, although only program ids and loaded values differ. So a launch's first program records a
trace: each call of the interpreter's builder whose result may differ in another program. The other
programs repeat only these calls, with their own values.

A trace is valid while the kernel's Python takes the same branches. Python branches on a value only
by reading `handle.data`, as `if tl.program_id(0) == 0` does; the trace keeps the value as a guard.
If the value differs, or an operation raises, the program diverges: the kernel's Python runs from
its start, reuses the results of the replay so far, and computes the rest. So an exception has the
kernel's own frames, and the trace has a second branch from then on.

A later launch of the kernel replays the same trace (see `TraceCache`) with its own pointers and
numbers, which have slots like the results of operations. Results that depend only on pointers and
numbers are computed once per launch.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import BlockPointerHandle, InterpreterBuilder, TensorHandle
from triton.runtime.jit import mangle_type

# --- the steps of a trace -------------------------------------------------------------------------

Method = Callable[..., Any]
EFFECTS = re.compile("load|store|atomic|gather|scatter|program|print|assert|assume|barrier")
"""Matches the names of operations that do more than compute a function of their operands."""
NAMES: dict[Method, str] = {}
"""The name of each operation that a trace may hold."""
NUM_PROGRAMS = "create_get_num_programs"
"""The operation matched by EFFECTS whose result is the same in each program of a launch."""
HANDLES = (TensorHandle, BlockPointerHandle, interpreter.TensorDescHandle)


class Form(NamedTuple):
    """The recorded shape and layout of an operand's array."""

    shape: tuple[int, ...]
    contiguous: bool


@dataclass(frozen=True, slots=True)
class TraceStep:
    """A call of the builder: its constant arguments, and the slots of its other arguments."""

    method: Method
    args: tuple[Any, ...]
    """The arguments; None for an argument that is read from a slot."""
    places: tuple[tuple[int, int], ...]
    """The position and the slot of each argument that is read from a slot."""
    forms: dict[int, Form]
    """The form of each tensor in `places`, by position."""
    nested: tuple[tuple[int, Any], ...]
    """The position of each argument that contains slots' values, and a function that builds it."""
    uniform: bool
    """Whether the result is the same in all programs of a launch."""

    def __call__(self, values: list[Any]) -> Any:
        """Return the result for the program with these slot values."""
        args = list(self.args)
        for position, value_id in self.places:
            args[position] = values[value_id]
        for position, build in self.nested:
            args[position] = build(values)
        return self.method(*args)


def handles(result: Any) -> Iterator[Any]:
    """Yield the handles in a result."""
    if isinstance(result, HANDLES):
        yield result
    elif isinstance(result, tl.tensor):
        yield result.handle
    elif isinstance(result, tuple | list):
        for part in result:
            yield from handles(part)


def varies(operand: Any) -> bool:
    """Return whether an operand depends on the program."""
    return any(hasattr(handle, "trace") for handle in handles(operand))


def is_lost(operand: Any) -> bool:
    """Return whether an operand may contain a value of this program that has no slot."""
    if isinstance(operand, tuple | list):
        return any(map(is_lost, operand))
    handle = operand.handle if isinstance(operand, tl.tensor) else operand
    supported = isinstance(handle, tl.constexpr) or not isinstance(handle, tl.core.base_value)
    return not supported or getattr(handle, "value_id", 0) is None


def step_of(method: Method, effect: bool, args: tuple[Any, ...]) -> TraceStep:
    """Return the step of an operation with these arguments.

    Args:
        method: The operation.
        effect: Whether it does more than compute a function of its operands.
        args: Its arguments; an argument that may differ in other programs has a slot.
    """
    varying = {position: arg for position, arg in enumerate(args) if varies(arg)}
    direct = {at: arg.value_id for at, arg in varying.items() if isinstance(arg, HANDLES)}
    nested = tuple((at, _builder(arg)) for at, arg in varying.items() if at not in direct)
    uniform = not nested and all(getattr(args[at], "uniform", False) for at in direct)
    return TraceStep(
        method,
        tuple(None if at in direct else arg for at, arg in enumerate(args)),
        tuple(direct.items()),
        {at: form_of(args[at]) for at in direct if isinstance(args[at], TensorHandle)},
        nested,
        uniform and (not effect or NAMES[method] == NUM_PROGRAMS),
    )


def form_of(handle: TensorHandle) -> Form:
    """Return the form of a tensor without recording a guard for the read."""
    array = vars(handle)["data"]
    return Form(array.shape, array.flags.c_contiguous)


def _builder(operand: Any) -> Callable[[list[Any]], Any]:
    """Return a function that builds this operand from a program's slot values."""
    if isinstance(operand, tl.tensor):
        build = _builder(operand.handle)
        return lambda values: tl.tensor(build(values), operand.type)
    if isinstance(operand, tuple | list):
        builders, container = [_builder(part) for part in operand], type(operand)
        return lambda values: container(build(values) for build in builders)
    if (value_id := getattr(operand, "value_id", None)) is not None:
        return lambda values: values[value_id]
    return lambda values: operand


MAX_DIVERGENCES = 8
"""With more divergences in a launch, its other programs run without the trace."""


class ReplayFailed(Exception):
    """A replay failed; the kernel's own Python repeats the failed call, with its own frames."""

    def __init__(self, address: int | None = None) -> None:
        """Keep the out-of-bounds address that made the replay fail, if any."""
        super().__init__()
        self.address = address


class TracedHandle(TensorHandle):  # type: ignore[misc]
    """A handle whose value depends on the program; a read of the value becomes a guard."""

    trace: RecordedTrace
    value_id: int | None
    uniform: bool
    """Whether the value is the same in all programs of the launch."""

    @property
    def data(self) -> Any:
        """Return the array; a read outside of an operation becomes a guard of the trace."""
        if self.trace.listening:
            self.trace.guard(self)
        return self.__dict__["data"]

    @data.setter
    def data(self, value: Any) -> None:
        if self.trace.listening:
            self.trace.leave()
        self.__dict__["data"] = value


@dataclass
class Guard:
    """A slot whose value Python reads, and the rest of the trace for each value read so far."""

    value_id: int
    branches: dict[bytes, list[TraceStep | Guard]] = field(default_factory=dict)


class RecordedTrace:
    """The operations of a kernel's launches, recorded and replayed."""

    def __init__(self) -> None:
        """Begin with an empty trace."""
        self.off = False
        """Whether all further programs run without the trace."""
        self.replaying = False
        self.listening = False
        """Whether the kernel's own Python runs, outside of any operation of the builder."""
        self.start: list[TraceStep | Guard] = []
        """The operations up to the first guard; later operations are in the guard's branches."""
        self.length = 0
        """The number of operations in all branches."""
        self.open(())

    def open(self, inputs: Sequence[Any]) -> None:
        """Begin a launch with the handles of its pointers and numbers."""
        self._divergences, self.inputs = 0, list(inputs)
        self._once: dict[int, Any] = {}
        self._begin([], [])
        for value_id, handle in enumerate(inputs):
            handle.uniform = True
            self._watch_reads(handle, value_id)

    def close(self) -> None:
        """Drop the launch's values."""
        self.open(())

    def _begin(self, results: list[Any], values: list[Any]) -> None:
        self._results, self._values = results, values
        self._computed, self._used = len(results), 0
        """The number of results computed so far, and used by the kernel's Python so far."""
        self._entries, self._position = self.start, 0

    def run(self, program: Callable[[], object]) -> None:
        """Run one program, by replay as far as the trace is valid."""
        if self.off:
            program()
            return
        if not self.start:
            self._begin([], list(self.inputs))
        elif self._replay():
            return
        self._divergences += 1
        self.listening = True
        try:
            program()
        finally:
            self.listening = False
            self.off |= self._divergences > MAX_DIVERGENCES

    # --- replay -----------------------------------------------------------------------------------

    def _replay(self) -> bool:
        """Replay the trace; return whether the replay finished the program."""
        results: list[Any] = []
        values = list(self.inputs)
        self.replaying = True
        try:
            finished = self._play(self.start, results, values)
        except Exception:  # the kernel's Python repeats the call and raises it again
            finished = False
        finally:
            self.replaying = False
        if not finished:
            self._begin(results, values)
            for value_id, handle in enumerate(values):
                self._watch_reads(handle, value_id)
        return finished

    def _play(
        self, entries: list[TraceStep | Guard], results: list[Any], values: list[Any]
    ) -> bool:
        while True:
            for entry in entries:
                if isinstance(entry, Guard):
                    break
                results.append(
                    result := self.once(entry, values) if entry.uniform else entry(values)
                )
                values.extend([result] if type(result) is TensorHandle else handles(result))
            else:
                return True
            branch = entry.branches.get(_value_bytes(values[entry.value_id]))
            if branch is None:
                return False
            entries = branch

    def once(self, step: TraceStep, values: list[Any]) -> Any:
        """Return a uniform step's result, which is computed once per launch and cached."""
        if id(step) not in self._once:
            self._add_once(step, step(values))
        return self._once[id(step)]

    def _add_once(self, step: TraceStep, result: Any) -> None:
        for handle in handles(result):
            handle.uniform = True
        self._once[id(step)] = result

    # --- recording --------------------------------------------------------------------------------

    def call(self, method: Method, effect: bool, args: tuple[Any, ...], named: Any) -> Any:
        """Return the result of an operation; record it if it may differ in another program."""
        if named:  # Triton 3.6 and 3.7 pass no keywords
            self.leave()
            return method(*args, **named)
        if not effect and not any(map(varies, args)):
            return method(*args)
        self.listening = False
        try:
            step = self._match_step(method, effect, args)
            if self._used == self._computed:
                self._results.append(method(*args))
                self._computed += 1
                if step and step.uniform:
                    self._add_once(step, self._results[-1])
                for handle in handles(self._results[-1]):
                    self._watch_reads(handle, len(self._values))
                    self._values.append(handle)
            self._used += 1
            return self._results[self._used - 1]
        finally:
            self.listening = not self.off

    def guard(self, handle: TracedHandle) -> None:
        """Record that Python has read this handle's value; follow the branch of that value."""
        if handle.value_id is not None and self._position == len(self._entries):
            self._entries.append(Guard(handle.value_id))
        entry = self._entries[self._position] if handle.value_id is not None else None
        if not isinstance(entry, Guard) or entry.value_id != handle.value_id:
            self.leave()
            return
        self._entries = entry.branches.setdefault(_value_bytes(handle), [])
        self._position = 0

    def leave(self) -> None:
        """Run the rest of this program, and all other programs, without the trace.

        Raises:
            RuntimeError: The replay's results are not used up, but Python makes other calls.
        """
        if self._used < self._computed:
            raise RuntimeError("the kernel's Python does not do the same in each program")
        self.off, self.listening = True, False

    def _match_step(self, method: Method, effect: bool, args: tuple[Any, ...]) -> TraceStep | None:
        """Return the recorded step of this operation, or None if it does not match the trace."""
        if self._position == len(self._entries):
            self._entries.append(step_of(method, effect, args))
            self.length += 1
        entry = self._entries[self._position]
        self._position += 1
        if (
            not isinstance(entry, TraceStep)
            or entry.method is not method
            or any(map(is_lost, args))
        ):
            self.leave()
            return None
        return entry

    def _watch_reads(self, handle: Any, value_id: int | None) -> None:
        """Report reads of the handle, and of the offsets that it contains, to the trace."""
        if isinstance(handle, TensorHandle):
            handle.__class__ = TracedHandle
        for offset in getattr(handle, "offsets", ()):
            self._watch_reads(offset, None)
        handle.trace, handle.value_id = self, value_id


def _value_bytes(handle: Any) -> bytes:
    value: bytes = vars(handle)["data"].tobytes()
    return value


def install(recorded: Callable[[Method, bool], Method]) -> None:
    """Patch the interpreter, as the last patch, so that a launch's trace sees each operation.

    Args:
        recorded: Wraps an operation so that its calls go through the trace. Its arguments are the
            operation, and whether that does more than compute a function of its operands.
    """
    names = [name for name in dir(InterpreterBuilder) if name.startswith("create_")]
    scans = interpreter.ReduceScanOpInterface
    for owner, name in ((scans, "apply"), *((InterpreterBuilder, name) for name in names)):
        NAMES[getattr(owner, name)] = name
        setattr(owner, name, recorded(getattr(owner, name), bool(EFFECTS.search(name))))


# --- traces for further launches ------------------------------------------------------------------

# A kernel's Python depends on the constants of a launch and the types of its other arguments. If
# these are unchanged, the operations are the same, and a launch replays an earlier launch's trace.
# Triton's compiler, too, compiles a kernel once for each such key, and refuses changed globals.

MAX_OPERATIONS = 1 << 16
"""The maximum number of operations in a cache; an operation takes about a kilobyte."""
PLAIN = (bool, int, float, str, type(None), tl.dtype, torch.dtype)
"""The types of constants that are identified by their repr."""
Function = Callable[..., Any]


class TraceCache:
    """Traces by cache key; see `key_of`."""

    def __init__(self) -> None:
        """Begin with no traces."""
        self._traces: dict[Hashable, RecordedTrace] = {}

    def take(self, key: Hashable) -> RecordedTrace:
        """Remove and return the trace of an earlier launch, or return a new trace.

        Only `keep` puts it back, since the trace of a failed launch is incomplete.
        """
        return self._traces.pop(key, None) or RecordedTrace()

    def keep(self, key: Hashable, trace: RecordedTrace) -> None:
        """Keep the trace of a launch that succeeded; drop the oldest traces if the cache is full.

        Args:
            key: The cache key; None if the trace is not reusable.
            trace: The launch's trace.
        """
        trace.close()
        if key is None or trace.off or not trace.start:
            return
        self._traces[key] = trace
        while sum(kept.length for kept in self._traces.values()) > MAX_OPERATIONS:
            del self._traces[next(iter(self._traces))]


def key_of(
    function: Function, arguments: Mapping[str, Any], constants: Collection[str]
) -> Hashable | None:
    """Return the cache key of a launch's trace, or None if the trace is not reusable.

    Args:
        function: The kernel's function.
        arguments: Its arguments. The key does not depend on the values of tensors and numbers.
        constants: The names of the arguments that are constexprs.
    """
    try:
        parts = (_key_part(value, name in constants) for name, value in arguments.items())
        return function, tuple(parts)
    except TypeError:
        return None


def _key_part(argument: Any, constant: bool) -> Hashable:
    """Return the part of the cache key for one argument.

    Raises:
        TypeError: The argument, such as a descriptor, has no comparable form.
    """
    if not constant and (isinstance(argument, int | float) or hasattr(argument, "data_ptr")):
        return str(mangle_type(argument))
    if isinstance(argument, tl.constexpr):
        argument = argument.value
    if type(argument) is tuple and constant:
        return tuple(_key_part(item, constant) for item in argument)
    if type(argument) not in PLAIN:
        raise TypeError
    return type(argument), repr(argument)


# --- the programs of a launch ---------------------------------------------------------------------

MIN_PROGRAMS = 2
"""Launches of at most this many programs run without vectorization, and record only a reusable
trace."""


class TracedProgram:
    """Stand-in for a kernel's function, which Triton's loop over the grid calls per program."""

    def __init__(
        self,
        function: Callable[..., object],
        trace: RecordedTrace,
        reusable: bool,
        run_vectorized: Callable[[int], bool],
    ) -> None:
        """Copy the function's name, signature and globals.

        Args:
            function: The kernel's function.
            trace: The trace of the launch.
            reusable: Whether later launches replay the trace with other tensors and numbers.
            run_vectorized: Runs all programs at once, except a number of first programs; returns
                whether that was possible.
        """
        functools.update_wrapper(self, function)
        self.__signature__ = inspect.signature(function)
        self.__globals__ = function.__globals__
        self._function, self._trace, self._run_vectorized = function, trace, run_vectorized
        self._reusable = reusable
        self._count = 0
        """The number of programs so far."""
        self.arguments: dict[str, Any] = {}
        """The kernel's arguments as converted by the interpreter."""
        self._vectorization_tried = self._vectorized = False
        """Whether the vectorized run of the other programs was tried, and whether it succeeded."""

    def __call__(self, **arguments: Any) -> None:
        """Run the program at the builder's grid index."""
        programs, self.arguments = math.prod(interpreter.interpreter_builder.grid_dim), arguments
        if programs <= MIN_PROGRAMS and not self._reusable:
            self._function(**arguments)
            return
        if not self._count:
            self._trace.open(_inputs(arguments) if self._reusable else ())
        if (
            not self._vectorization_tried
            and programs > MIN_PROGRAMS
            and self._trace.start
            and not self._trace.off
        ):
            self._vectorized = self._run_vectorized(self._count)
            self._vectorization_tried = True
        self._count += 1
        if not self._vectorized:
            self._trace.run(self.again)

    def again(self) -> None:
        """Run the program at the builder's grid index in the kernel's own Python."""
        self._function(**self.arguments)


def _inputs(arguments: Mapping[str, Any]) -> list[Any]:
    """Return the handles of a launch's pointers and numbers."""
    return [value.handle for value in arguments.values() if isinstance(value, tl.tensor)]
