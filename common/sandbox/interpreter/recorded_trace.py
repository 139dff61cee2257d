"""The operations of a launch's first program, on a trace that its other programs replay.

Triton's front end takes fifty microseconds for an operation whose arithmetic takes five, in each
program, although only program ids and loaded values differ. So a launch's first program records a
trace: each call of the interpreter's builder whose result may differ in another program. The others
repeat these calls alone, with their own values.

A trace is valid while the kernel's Python takes the same branches. Python branches on a value only
by reading `handle.data`, as `if tl.program_id(0) == 0` does; the trace keeps the value as a guard.
Where the value differs, or an operation raises, the program diverges: the kernel's Python runs from
its start, takes the results of the replay so far, and computes the others. So an exception has the
kernel's own frames, and the trace has a second branch from then on.

A later launch of the kernel replays the same trace (see `TraceCache`). Its pointers and numbers are
then other ones: they have slots as the results of operations have. What depends on them alone is
computed once a launch.
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
"""The operations that are more than a function of their operands, by a part of their name."""
NAMES: dict[Method, str] = {}
"""The name of each operation that a trace may hold."""
NUM_PROGRAMS = "create_get_num_programs"
"""The operation among them whose result is the same in each program of a launch."""
HANDLES = (TensorHandle, BlockPointerHandle, interpreter.TensorDescHandle)


class Form(NamedTuple):
    """The shape and layout of an operand's array, as it was recorded."""

    shape: tuple[int, ...]
    contiguous: bool


@dataclass(frozen=True, slots=True)
class TraceStep:
    """A call of the builder: its constant arguments, and the slots of its other arguments."""

    method: Method
    args: tuple[Any, ...]
    """The arguments; None where the argument is the result of an earlier call."""
    places: tuple[tuple[int, int], ...]
    """The position of an argument, and its slot."""
    forms: dict[int, Form]
    """The form of each tensor among them, by position."""
    nested: tuple[tuple[int, Any], ...]
    """The position of an argument that contains such handles, and a function that builds it."""
    uniform: bool
    """Whether the result is the same in all programs of a launch."""

    def __call__(self, values: list[Any]) -> Any:
        """Return the result in the program whose values the slots hold."""
        args = list(self.args)
        for position, value_id in self.places:
            args[position] = values[value_id]
        for position, made in self.nested:
            args[position] = made(values)
        return self.method(*args)


def handles(result: Any) -> Iterator[Any]:
    """Yield the handles that a result consists of."""
    if isinstance(result, HANDLES):
        yield result
    elif isinstance(result, tl.tensor):
        yield result.handle
    elif isinstance(result, tuple | list):
        for each in result:
            yield from handles(each)


def varies(operand: Any) -> bool:
    """Return whether an operand depends on the program."""
    return any(hasattr(handle, "trace") for handle in handles(operand))


def is_lost(operand: Any) -> bool:
    """Return whether an operand may depend on the program in a way that a replay cannot repeat."""
    if isinstance(operand, tuple | list):
        return any(map(is_lost, operand))
    handle = operand.handle if isinstance(operand, tl.tensor) else operand
    known = isinstance(handle, tl.constexpr) or not isinstance(handle, tl.core.base_value)
    return not known or getattr(handle, "value_id", 0) is None


def step_of(method: Method, effect: bool, args: tuple[Any, ...]) -> TraceStep:
    """Return the step of an operation that was asked with these arguments.

    Args:
        method: The operation.
        effect: Whether it is more than a function of its operands.
        args: Its arguments; those that may differ elsewhere have a slot.
    """
    varying = {position: each for position, each in enumerate(args) if varies(each)}
    direct = {at: each.value_id for at, each in varying.items() if isinstance(each, HANDLES)}
    nested = tuple((at, _maker(each)) for at, each in varying.items() if at not in direct)
    uniform = not nested and all(getattr(args[at], "uniform", False) for at in direct)
    return TraceStep(
        method,
        tuple(None if at in direct else each for at, each in enumerate(args)),
        tuple(direct.items()),
        {at: form_of(args[at]) for at in direct if isinstance(args[at], TensorHandle)},
        nested,
        uniform and (not effect or NAMES[method] == NUM_PROGRAMS),
    )


def form_of(handle: TensorHandle) -> Form:
    """Return the form of a tensor, without a guard for the read."""
    array = vars(handle)["data"]
    return Form(array.shape, array.flags.c_contiguous)


def _maker(operand: Any) -> Callable[[list[Any]], Any]:
    """Return a function from a program's slots to this operand."""
    if isinstance(operand, tl.tensor):
        made = _maker(operand.handle)
        return lambda values: tl.tensor(made(values), operand.type)
    if isinstance(operand, tuple | list):
        several, kind = [_maker(each) for each in operand], type(operand)
        return lambda values: kind(each(values) for each in several)
    if (value_id := getattr(operand, "value_id", None)) is not None:
        return lambda values: values[value_id]
    return lambda values: operand


MAX_DIVERGENCES = 8
"""The divergences after which the other programs of a launch run without the trace."""


class LeftTrace(Exception):
    """A replay failed; the kernel's own Python repeats the failed call, with its own frames."""

    def __init__(self, address: int | None = None) -> None:
        """Keep the address that lies outside of the launch's memory, if that is why."""
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
    """A value that Python read, with the rest of the trace for each value read so far."""

    value_id: int
    branches: dict[bytes, list[TraceStep | Guard]] = field(default_factory=dict)


class RecordedTrace:
    """The operations of a kernel's launches, recorded and replayed."""

    def __init__(self) -> None:
        """Begin with an empty trace."""
        self.off = False
        """Whether every program runs without the trace from now on."""
        self.replaying = False
        self.listening = False
        """Whether the kernel's own Python runs, outside of any operation of the builder."""
        self.start: list[TraceStep | Guard] = []
        """The first operations; those behind a decision are a branch of its guard."""
        self.length = 0
        """All operations."""
        self.open(())

    def open(self, inputs: Sequence[Any]) -> None:
        """Begin a launch with these handles, which may differ from those of other launches."""
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
        self._known, self._asked = len(results), 0
        self._entries, self._position = self.start, 0

    def run(self, program: Callable[[], object]) -> None:
        """Run one program, by replay where the trace is valid."""
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
            whole = self._play(self.start, results, values)
        except Exception:  # raised again where the kernel's Python makes that call
            whole = False
        finally:
            self.replaying = False
        if not whole:
            self._begin(results, values)
            for value_id, handle in enumerate(values):
                self._watch_reads(handle, value_id)
        return whole

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
            branch = entry.branches.get(_value(values[entry.value_id]))
            if branch is None:
                return False
            entries = branch

    def once(self, step: TraceStep, values: list[Any]) -> Any:
        """Return the cached result of a step that is the same in all programs of the launch."""
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
            step = self._keep(method, effect, args)
            if self._asked == self._known:
                self._results.append(method(*args))
                self._known += 1
                if step and step.uniform:
                    self._add_once(step, self._results[-1])
                for handle in handles(self._results[-1]):
                    self._watch_reads(handle, len(self._values))
                    self._values.append(handle)
            self._asked += 1
            return self._results[self._asked - 1]
        finally:
            self.listening = not self.off

    def guard(self, handle: TracedHandle) -> None:
        """Keep the value of a handle that Python has read."""
        if handle.value_id is not None and self._position == len(self._entries):
            self._entries.append(Guard(handle.value_id))
        entry = self._entries[self._position] if handle.value_id is not None else None
        if not isinstance(entry, Guard) or entry.value_id != handle.value_id:
            self.leave()
            return
        self._entries = entry.branches.setdefault(_value(handle), [])
        self._position = 0

    def leave(self) -> None:
        """Run the rest of this program, and all other programs, without the trace.

        Raises:
            RuntimeError: The program has results of a replay, and Python now asks for others.
        """
        if self._asked < self._known:
            raise RuntimeError("the kernel's Python does not do the same in each program")
        self.off, self.listening = True, False

    def _keep(self, method: Method, effect: bool, args: tuple[Any, ...]) -> TraceStep | None:
        """Return the step of this operation, or None once the trace is abandoned."""
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
        """Report reads of the handle, and of the copies in it, to the trace."""
        if isinstance(handle, TensorHandle):
            handle.__class__ = TracedHandle
        for copy in getattr(handle, "offsets", ()):
            self._watch_reads(copy, None)
        handle.trace, handle.value_id = self, value_id


def _value(handle: Any) -> bytes:
    value: bytes = vars(handle)["data"].tobytes()
    return value


def install(recorded: Callable[[Method, bool], Method]) -> None:
    """Patch the interpreter, last of all, so that a launch's trace sees each operation.

    Args:
        recorded: Returns an operation that goes through the trace; its arguments are the operation,
            and whether it is more than a function of its operands.
    """
    names = [name for name in dir(InterpreterBuilder) if name.startswith("create_")]
    scans = interpreter.ReduceScanOpInterface
    for owner, name in ((scans, "apply"), *((InterpreterBuilder, name) for name in names)):
        NAMES[getattr(owner, name)] = name
        setattr(owner, name, recorded(getattr(owner, name), bool(EFFECTS.search(name))))


# --- traces for further launches ------------------------------------------------------------------

# A kernel's Python depends on the constants of a launch and the types of its other arguments. Where
# these are unchanged, the operations are the same, and a launch replays an earlier launch's trace.
# Triton's compiler, too, compiles a kernel once for them, and refuses a global that has changed.

LONGEST = 1 << 16
"""The most operations that are kept; each takes about a kilobyte."""
PLAIN = (bool, int, float, str, type(None), tl.dtype, torch.dtype)
"""The types of constants that their repr identifies."""
Function = Callable[..., Any]


class TraceCache:
    """Traces by cache key; see `key_of`."""

    def __init__(self) -> None:
        """Begin with none."""
        self._kept: dict[Hashable, RecordedTrace] = {}

    def take(self, key: Hashable) -> RecordedTrace:
        """Take out the trace of an earlier launch, or return a new one.

        Only `keep` puts it back, since a launch that fails leaves a trace that ends too early.
        """
        return self._kept.pop(key, None) or RecordedTrace()

    def keep(self, key: Hashable, trace: RecordedTrace) -> None:
        """Keep the trace of a launch that ended well; forget the oldest ones where they are long.

        Args:
            key: The cache key; None if the trace is not reusable.
            trace: The trace.
        """
        trace.close()
        if key is None or trace.off or not trace.start:
            return
        self._kept[key] = trace
        while sum(each.length for each in self._kept.values()) > LONGEST:
            del self._kept[next(iter(self._kept))]


def key_of(
    function: Function, arguments: Mapping[str, Any], constants: Collection[str]
) -> Hashable | None:
    """Return the cache key of a launch's trace, or None if the trace is not reusable.

    Args:
        function: The kernel's function.
        arguments: Its arguments, of which tensors and numbers may differ in value.
        constants: The names of the constants of compilation among them.
    """
    try:
        seen = (_seen(value, name in constants) for name, value in arguments.items())
        return function, tuple(seen)
    except TypeError:
        return None


def _seen(argument: Any, constant: bool) -> Hashable:
    """Return the part of the cache key for one argument.

    Raises:
        TypeError: The argument has no comparable form, as a descriptor.
    """
    if not constant and (isinstance(argument, int | float) or hasattr(argument, "data_ptr")):
        return str(mangle_type(argument))
    if isinstance(argument, tl.constexpr):
        argument = argument.value
    if type(argument) is tuple and constant:
        return tuple(_seen(each, constant) for each in argument)
    if type(argument) not in PLAIN:
        raise TypeError
    return type(argument), repr(argument)


# --- a launch that is recorded --------------------------------------------------------------------

MIN_PROGRAMS = 2
"""Launches of at most so many programs run neither vectorized nor, if not reusable, by a trace."""


class TracedProgram:
    """Replace a kernel's function in Triton's loop over the grid, which calls it per program."""

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
            run_vectorized: Runs all programs but the first so many at once, if possible.
        """
        functools.update_wrapper(self, function)
        self.__signature__ = inspect.signature(function)
        self.__globals__ = function.__globals__
        self._function, self._trace, self._run_vectorized = function, trace, run_vectorized
        self._reusable = reusable
        self._count = 0
        """The programs so far."""
        self.arguments: dict[str, Any] = {}
        """The kernel's arguments as the interpreter made them."""
        self._asked = self._done = False
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
            not self._asked
            and programs > MIN_PROGRAMS
            and self._trace.start
            and not self._trace.off
        ):
            self._asked, self._done = True, self._run_vectorized(self._count)
        self._count += 1
        if not self._done:
            self._trace.run(self.again)

    def again(self) -> None:
        """Run the program at the builder's grid index by the kernel's own Python."""
        self._function(**self.arguments)


def _inputs(arguments: Mapping[str, Any]) -> list[Any]:
    """Return the handles of a launch's pointers and numbers."""
    return [value.handle for value in arguments.values() if isinstance(value, tl.tensor)]
