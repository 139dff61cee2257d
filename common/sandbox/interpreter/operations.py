"""Patches of functions, and the interpreter's operations: its builder's, reductions and scans."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import BlockPointerHandle, InterpreterBuilder, TensorHandle

Operation = Callable[..., Any]


def wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> Callable[[], None]:
    """Replace a function of a module or a class by a wrapper that receives the original function.

    For example, after `wrap(interpreter, "_get_np_dtype", wrapper)`, `_get_np_dtype(dtype)` calls
    `wrapper(original, dtype)`, where `original` is Triton's own `_get_np_dtype`. Return a function
    that puts the original back.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def patched(*args: Any, **named: Any) -> Any:
        return wrapper(original, *args, **named)

    setattr(owner, name, patched)
    return functools.partial(setattr, owner, name, original)


def wrap_each(wrapper: Callable[[str, Operation], Operation]) -> None:
    """Replace each operation; `wrapper` receives its name and the operation."""
    names = [name for name in dir(InterpreterBuilder) if name.startswith("create_")]
    scans = interpreter.ReduceScanOpInterface
    for owner, name in ((scans, "apply"), *((InterpreterBuilder, name) for name in names)):
        setattr(owner, name, wrapper(name, getattr(owner, name)))


NESTED = (tl.tensor, tuple, list, BlockPointerHandle, interpreter.TensorDescHandle)
"""The types of operands and results that hold handles."""


def mapped(change: Callable[[TensorHandle], Any], value: Any) -> Any:
    """Return an operand or a result with `change` applied to each handle in it."""
    if isinstance(value, TensorHandle):
        return change(value)
    if not isinstance(value, NESTED):
        return value
    if isinstance(value, tl.tensor):
        return tl.tensor(mapped(change, value.handle), value.type)
    if isinstance(value, tuple | list):
        return type(value)([mapped(change, part) for part in value])
    changed = copy.copy(value)
    vars(changed).update({name: mapped(change, part) for name, part in vars(value).items()})
    return changed


def handles(value: Any) -> list[TensorHandle]:
    """Return the handles in an operand or a result, in the order of `mapped`."""
    found: list[TensorHandle] = []

    def note(handle: TensorHandle) -> TensorHandle:
        found.append(handle)
        return handle

    mapped(note, value)
    return found
