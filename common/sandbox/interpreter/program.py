"""A kernel's function as Triton's loop over the grid calls it, once for each program."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

from common.sandbox.interpreter.tape import Tape

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
