"""A kernel's function as Triton's loop over the grid calls it, once for each program."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

from triton.runtime import interpreter

from common.sandbox.interpreter.tape import Tape

FEW = 2
"""The programs of a launch that a tape does not make faster."""


class Program:
    """A kernel's function in the place that Triton's loop over the grid calls, once a program."""

    def __init__(
        self, function: Callable[..., object], tape: Tape, together: Callable[[int], bool]
    ) -> None:
        """Look like the function to those who inspect it.

        Args:
            function: The kernel's function.
            tape: The tape of the launch.
            together: Runs all programs but the first few at once, if it can.
        """
        functools.update_wrapper(self, function)
        self.__signature__ = inspect.signature(function)
        self.__globals__ = function.__globals__
        self._function, self._tape, self._together = function, tape, together
        self._count = 0
        """The programs so far."""
        self._done = False

    def __call__(self, **arguments: Any) -> None:
        """Run the program that the builder's grid index names."""
        if math.prod(interpreter.interpreter_builder.grid_dim) <= FEW:
            self._function(**arguments)
            return
        if self._count == 1 and not self._tape.off:
            self._done = self._together(1)
        self._count += 1
        if not self._done:
            self._tape.run(functools.partial(self._function, **arguments))
