"""The steps of a tape: calls of the interpreter's builder, without the values of any program."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import BlockPointerHandle, TensorHandle

Method = Callable[..., Any]
EFFECTS = re.compile("load|store|atomic|gather|scatter|program|print|assert|assume|barrier")
"""The operations that are more than a function of their operands, by a part of their name."""
NAMES: dict[Method, str] = {}
"""The name of each operation that a tape may hold."""
COUNT = "create_get_num_programs"
"""The one of them that gives the same in each program of a launch."""
HANDLES = (TensorHandle, BlockPointerHandle, interpreter.TensorDescHandle)


class Form(NamedTuple):
    """The shape and layout of an operand's array, as it was recorded."""

    shape: tuple[int, ...]
    contiguous: bool


@dataclass(frozen=True, slots=True)
class Step:
    """A call of the builder: its arguments, and the places of those that earlier calls gave."""

    method: Method
    args: tuple[Any, ...]
    """The arguments, None where an earlier call gave one."""
    places: tuple[tuple[int, int], ...]
    """The position of an argument, and its slot."""
    forms: dict[int, Form]
    """The form of each tensor among them, by position."""
    nested: tuple[tuple[int, Any], ...]
    """The position of an argument that holds such handles, and how to make it."""
    uniform: bool
    """Whether the result is the same in all programs of a launch."""

    def __call__(self, slots: list[Any]) -> Any:
        """Return the result in the program whose values the slots hold."""
        args = list(self.args)
        for position, slot in self.places:
            args[position] = slots[slot]
        for position, made in self.nested:
            args[position] = made(slots)
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
    return any(hasattr(handle, "tape") for handle in handles(operand))


def is_lost(operand: Any) -> bool:
    """Return whether an operand may depend on the program in a way that no replay repeats."""
    if isinstance(operand, tuple | list):
        return any(map(is_lost, operand))
    handle = operand.handle if isinstance(operand, tl.tensor) else operand
    known = isinstance(handle, tl.constexpr) or not isinstance(handle, tl.core.base_value)
    return not known or getattr(handle, "slot", 0) is None


def step_of(method: Method, effect: bool, args: tuple[Any, ...]) -> Step:
    """Return the step of an operation that was asked with these arguments.

    Args:
        method: The operation.
        effect: Whether it is more than a function of its operands.
        args: Its arguments; those that may differ elsewhere have a slot.
    """
    varying = {position: each for position, each in enumerate(args) if varies(each)}
    direct = {at: each.slot for at, each in varying.items() if isinstance(each, HANDLES)}
    nested = tuple((at, _maker(each)) for at, each in varying.items() if at not in direct)
    uniform = not nested and all(getattr(args[at], "uniform", False) for at in direct)
    return Step(
        method,
        tuple(None if at in direct else each for at, each in enumerate(args)),
        tuple(direct.items()),
        {at: form_of(args[at]) for at in direct if isinstance(args[at], TensorHandle)},
        nested,
        uniform and (not effect or NAMES[method] == COUNT),
    )


def form_of(handle: TensorHandle) -> Form:
    """Return the form of a tensor, of which a tape is not told."""
    array = vars(handle)["data"]
    return Form(array.shape, array.flags.c_contiguous)


def _maker(operand: Any) -> Callable[[list[Any]], Any]:
    """Return a function from a program's slots to this operand."""
    if isinstance(operand, tl.tensor):
        made = _maker(operand.handle)
        return lambda slots: tl.tensor(made(slots), operand.type)
    if isinstance(operand, tuple | list):
        several, kind = [_maker(each) for each in operand], type(operand)
        return lambda slots: kind(each(slots) for each in several)
    if (slot := getattr(operand, "slot", None)) is not None:
        return lambda slots: slots[slot]
    return lambda slots: operand
