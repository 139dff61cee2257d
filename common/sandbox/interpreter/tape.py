"""The operations of a launch's first program, on a tape that its other programs replay.

For an operation whose arithmetic takes five microseconds Triton's front end takes fifty, and takes
them again in each program, though only program ids and loaded values differ. So the first program
of a launch leaves a tape: each call of the interpreter's builder whose result may differ in another
program. The next program makes these calls alone, with its own values.

A tape holds as long as Python decides the same. It decides on a value only by reading
`handle.data`, as `if tl.program_id(0) == 0` does; the value read is on the tape as a guard. A
program with another value there, or whose operation raises, leaves the tape: the kernel's Python
runs once more, is given the results that are there already, and goes on by itself. So an exception
has the kernel's own frames, and a second branch is on the tape next time.

A later launch of the kernel replays the same tape (see `tapes`). Its pointers and numbers are then
other ones: they have slots as the results of operations have. What depends on them alone is
computed once a launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from common.sandbox.interpreter.steps import (
    EFFECTS,
    NAMES,
    Method,
    Step,
    handles,
    is_lost,
    step_of,
    varies,
)

MOST_LEAVES = 8
"""Programs that may leave a launch's tape before all others run without it."""


class Left(Exception):
    """A replay cannot go on: the kernel's own Python makes the call that failed again."""

    def __init__(self, address: int | None = None) -> None:
        """Keep the address that lies outside of the launch's memory, if that is why."""
        super().__init__()
        self.address = address


class Traced(TensorHandle):  # type: ignore[misc]
    """A handle whose value depends on the program: reading it is a decision of the kernel's."""

    tape: Tape
    slot: int | None
    uniform: bool
    """Whether the value is the same in all programs of the launch."""

    @property
    def data(self) -> Any:
        """Return the array; the tape keeps what Python reads outside of an operation."""
        if self.tape.listening:
            self.tape.guard(self)
        return self.__dict__["data"]

    @data.setter
    def data(self, value: Any) -> None:
        if self.tape.listening:
            self.tape.leave()
        self.__dict__["data"] = value


@dataclass
class Guard:
    """A value that Python read, and the tape that follows for each value seen so far."""

    slot: int
    branches: dict[bytes, list[Step | Guard]] = field(default_factory=dict)


class Tape:
    """The operations of a kernel's launches, recorded and replayed."""

    def __init__(self) -> None:
        """Begin with an empty tape."""
        self.off = False
        """Whether every program runs without the tape from now on."""
        self.replaying = False
        self.listening = False
        """Whether the kernel's own Python runs, outside of any operation of the builder."""
        self.start: list[Step | Guard] = []
        """The first operations; those behind a decision are a branch of its guard."""
        self.length = 0
        """All operations."""
        self.seen: dict[Callable[..., Any], tuple[Any, ...]] = {}
        """The functions whose Python is on the tape, and what it saw of their globals."""
        self.open(())

    def open(self, inputs: Sequence[Any]) -> None:
        """Begin a launch with these handles, which may differ from those of other launches."""
        self._leaves, self.inputs = 0, list(inputs)
        self._once: dict[int, Any] = {}
        self._begin([], [])
        for slot, handle in enumerate(inputs):
            handle.uniform = True
            self._trace(handle, slot)

    def close(self) -> None:
        """Let go of the launch's values."""
        self.open(())

    def _begin(self, results: list[Any], slots: list[Any]) -> None:
        self._results, self._slots = results, slots
        self._known, self._asked = len(results), 0
        self._entries, self._position = self.start, 0

    def run(self, program: Callable[[], object]) -> None:
        """Run one program, by replay where the tape holds for it."""
        if self.off:
            program()
            return
        if not self.start:
            self._begin([], list(self.inputs))
        elif self._replay():
            return
        self._leaves += 1
        self.listening = True
        try:
            program()
        finally:
            self.listening = False
            self.off |= self._leaves > MOST_LEAVES

    # --- replay -----------------------------------------------------------------------------------

    def _replay(self) -> bool:
        """Make the calls on the tape; return whether they were the whole program."""
        results: list[Any] = []
        slots = list(self.inputs)
        self.replaying = True
        try:
            whole = self._play(self.start, results, slots)
        except Exception:  # raised again where the kernel's Python makes that call
            whole = False
        finally:
            self.replaying = False
        if not whole:
            self._begin(results, slots)
            for slot, handle in enumerate(slots):
                self._trace(handle, slot)
        return whole

    def _play(self, entries: list[Step | Guard], results: list[Any], slots: list[Any]) -> bool:
        while True:
            for entry in entries:
                if isinstance(entry, Guard):
                    break
                results.append(result := self.once(entry, slots) if entry.uniform else entry(slots))
                slots.extend([result] if type(result) is TensorHandle else handles(result))
            else:
                return True
            branch = entry.branches.get(_value(slots[entry.slot]))
            if branch is None:
                return False
            entries = branch

    def once(self, step: Step, slots: list[Any]) -> Any:
        """Return the result of a step that gives the same in all programs of the launch."""
        if id(step) not in self._once:
            self._add_once(step, step(slots))
        return self._once[id(step)]

    def _add_once(self, step: Step, result: Any) -> None:
        for handle in handles(result):
            handle.uniform = True
        self._once[id(step)] = result

    # --- recording --------------------------------------------------------------------------------

    def call(self, method: Method, effect: bool, args: tuple[Any, ...], named: Any) -> Any:
        """Return the result of an operation, and put it on the tape if it may differ elsewhere."""
        if named:  # as no operation of Triton 3.6 and 3.7 is asked
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
                    self._trace(handle, len(self._slots))
                    self._slots.append(handle)
            self._asked += 1
            return self._results[self._asked - 1]
        finally:
            self.listening = not self.off

    def guard(self, handle: Traced) -> None:
        """Keep the value of a handle that Python has read."""
        if handle.slot is not None and self._position == len(self._entries):
            self._entries.append(Guard(handle.slot))
        entry = self._entries[self._position] if handle.slot is not None else None
        if not isinstance(entry, Guard) or entry.slot != handle.slot:
            self.leave()
            return
        self._entries = entry.branches.setdefault(_value(handle), [])
        self._position = 0

    def leave(self) -> None:
        """Run this program to its end, and every other one, without the tape.

        Raises:
            RuntimeError: The program has results of a replay, and Python now asks for others.
        """
        if self._asked < self._known:
            raise RuntimeError("the kernel's Python does not do the same in each program")
        self.off, self.listening = True, False

    def _keep(self, method: Method, effect: bool, args: tuple[Any, ...]) -> Step | None:
        """Return the step of this operation, None once the tape is left for good."""
        if self._position == len(self._entries):
            self._entries.append(step_of(method, effect, args))
            self.length += 1
        entry = self._entries[self._position]
        self._position += 1
        if not isinstance(entry, Step) or entry.method is not method or any(map(is_lost, args)):
            self.leave()
            return None
        return entry

    def _trace(self, handle: Any, slot: int | None) -> None:
        """Have the tape told of each read of the handle, and of copies that it holds."""
        if isinstance(handle, TensorHandle):
            handle.__class__ = Traced
        for copy in getattr(handle, "offsets", ()):
            self._trace(copy, None)
        handle.tape, handle.slot = self, slot


def _value(handle: Any) -> bytes:
    value: bytes = vars(handle)["data"].tobytes()
    return value


def install(recorded: Callable[[Method, bool], Method]) -> None:
    """Patch the interpreter, last of all, so that a launch's tape sees each operation.

    Args:
        recorded: Returns an operation that goes through the tape; its arguments are the operation,
            and whether it is more than a function of its operands.
    """
    names = [name for name in dir(InterpreterBuilder) if name.startswith("create_")]
    scans = interpreter.ReduceScanOpInterface
    for owner, name in ((scans, "apply"), *((InterpreterBuilder, name) for name in names)):
        NAMES[getattr(owner, name)] = name
        setattr(owner, name, recorded(getattr(owner, name), bool(EFFECTS.search(name))))
