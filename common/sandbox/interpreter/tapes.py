"""The tapes of a solution's launches, each for the next launch that decides the same.

A kernel's Python sees the constants of a launch, the types of its other arguments, and the globals
of the functions that it calls. Where these are as they were, it makes the same operations, and a
launch replays the tape of an earlier one. Triton's compiler, too, compiles a kernel once for them.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable, Collection, Hashable, Mapping
from types import CodeType
from typing import Any

import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.jit import mangle_type

from common.sandbox.interpreter.tape import Tape

LONGEST = 1 << 16
"""The most operations that are kept; each takes about a kilobyte."""
PLAIN = (bool, int, float, str, type(None), tl.dtype, torch.dtype)
"""The types of constants whose text tells all that a kernel sees of them."""
_MISSING = object()
Function = Callable[..., Any]


class Tapes:
    """Tapes by the kernel and by what its Python sees of a launch's arguments."""

    def __init__(self) -> None:
        """Begin with none."""
        self._kept: dict[Hashable, Tape] = {}

    def take(self, key: Hashable) -> Tape:
        """Take out the tape of an earlier launch, or return a new one.

        Only `keep` puts it back, since a launch that fails leaves a tape that ends too early.
        """
        tape = self._kept.pop(key, None)
        if tape and all(_is_as_before(*each) for each in tape.seen.items()):
            return tape
        return Tape()

    def keep(self, key: Hashable, tape: Tape, functions: Collection[Function]) -> None:
        """Keep the tape of a launch that ended well; forget the oldest ones where they are long.

        Args:
            key: What the launch goes by; None where its tape is for no other.
            tape: The tape.
            functions: The functions whose Python ran in the launch.
        """
        tape.close()
        if key is None or tape.off or not tape.start:
            return
        tape.seen |= {each: _globals_of(each) for each in map(inspect.unwrap, functions)}
        self._kept[key] = tape
        while sum(each.length for each in self._kept.values()) > LONGEST:
            del self._kept[next(iter(self._kept))]


def key_of(
    function: Function, arguments: Mapping[str, Any], constants: Collection[str]
) -> Hashable | None:
    """Return what a launch's tape goes by, None where it is for no other launch.

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
    """Return what a kernel's Python sees of an argument.

    Raises:
        TypeError: It may see more than can be compared, as of a descriptor.
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


def _is_as_before(function: Function, was: tuple[Any, ...]) -> bool:
    return all(map(operator.is_, _globals_of(function), was))


def _globals_of(function: Function) -> tuple[Any, ...]:
    """Return what the names in a function's code stand for outside of it."""
    known = function.__globals__
    cells = (cell.cell_contents for cell in function.__closure__ or ())
    return (*(known.get(name, _MISSING) for name in _names(function.__code__)), *cells)


@functools.cache
def _names(code: CodeType) -> tuple[str, ...]:
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return (*code.co_names, *(name for each in inner for name in _names(each)))


# --- a launch that is taped -----------------------------------------------------------------------

FEW = 2
"""The programs of a launch that are not made faster: by playing them together, or by a tape that no
other launch will play."""


class Program:
    """A kernel's function in the place that Triton's loop over the grid calls, once a program."""

    def __init__(
        self,
        function: Callable[..., object],
        tape: Tape,
        lasting: bool,
        together: Callable[[int], bool],
    ) -> None:
        """Look like the function to those who inspect it.

        Args:
            function: The kernel's function.
            tape: The tape of the launch.
            lasting: Whether it is for further launches too, with other tensors and numbers.
            together: Runs all programs but so many at once, if it can.
        """
        functools.update_wrapper(self, function)
        self.__signature__ = inspect.signature(function)
        self.__globals__ = function.__globals__
        self._function, self._tape, self._together = function, tape, together
        self._lasting = lasting
        self._count = 0
        """The programs so far."""
        self.arguments: dict[str, Any] = {}
        """The kernel's arguments as the interpreter made them."""
        self._asked = self._done = False
        """Whether all further ones were asked to run at once, and whether they did."""

    def __call__(self, **arguments: Any) -> None:
        """Run the program that the builder's grid index names."""
        programs, self.arguments = math.prod(interpreter.interpreter_builder.grid_dim), arguments
        if programs <= FEW and not self._lasting:
            self._function(**arguments)
            return
        if not self._count:
            self._tape.open(_inputs(arguments) if self._lasting else ())
        if not self._asked and programs > FEW and self._tape.start and not self._tape.off:
            self._asked, self._done = True, self._together(self._count)
        self._count += 1
        if not self._done:
            self._tape.run(self.again)

    def again(self) -> None:
        """Run the program that the builder's grid index names, whatever ran before."""
        self._function(**self.arguments)


def _inputs(arguments: Mapping[str, Any]) -> list[Any]:
    """Return the handles of a launch's pointers and numbers."""
    return [value.handle for value in arguments.values() if isinstance(value, tl.tensor)]
