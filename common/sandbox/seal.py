"""The tamper check: objects that a solution replaced in its process, or left behind to run later.

`docs/grading.md` lists what it misses.
"""

from __future__ import annotations

import builtins
import operator
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import compress
from typing import Any

import torch
from torch import _C
from torch.utils._device import DeviceContext
from triton.runtime import interpreter

from common.sandbox import backend
from common.verdicts import Failure

Part = tuple[str, Mapping[str, object], tuple[str, ...], tuple[object, ...]]
"""An owner's name, its namespace, keys, and their values: None for one that it must not get."""
CALLED = (builtins, time, torch.autograd, torch.cuda, sys.modules[DeviceContext.__module__])
CLASSES = (torch.Tensor, torch.UntypedStorage, torch.cuda.Event, torch.cuda.Stream, DeviceContext)
ALLOCATES = ("empty", "empty_like", "empty_strided", "full", "zeros", "set_grad_enabled", "no_grad")
"""What calls a solution, times it, and fills and copies memory: modules, classes, torch's names."""
OURS = ("common.sandbox", "common.arena", interpreter.__name__)
POOLS = ("concurrent.futures.", "multiprocessing.pool", "torch.", "triton.", "tqdm.")
"""The modules whose threads may remain: Python's pools, and those of torch.compile."""


class Seal:
    """The state of a process before its solution is loaded."""

    def __init__(self, parts: Iterable[Part]) -> None:
        """Record the parts that must not be replaced, and the threads."""
        self.parts, self.threads = tuple(parts), {*sys._current_frames()}

    def check(self) -> None:
        """Raise Failure, TAMPERED, if a part was replaced, or a thread or mode was left behind."""
        for owner, namespace, keys, values in self.parts:
            for key in compress(keys, map(operator.is_not, map(namespace.get, keys), values)):
                raise Failure("TAMPERED", f"{owner}.{key} was replaced")
        if _modes():
            raise Failure("TAMPERED", "a mode was left behind")
        new = {ident for ident in sys._current_frames() if ident not in self.threads}
        if new and new - {thread.ident for thread in threading.enumerate() if _is_of_pool(thread)}:
            raise Failure("TAMPERED", "a thread that belongs to no pool was left behind")


def _is_of_pool(thread: threading.Thread) -> bool:
    function = getattr(thread, "_target", None) or type(thread)
    return str(function.__module__).startswith(POOLS)


def sealed_parts() -> Iterator[Part]:
    """Yield the parts of Python, of torch and of the harness."""
    yield part_of(torch, ALLOCATES)
    yield from (part_of(owner, dir(owner)) for owner in CLASSES)
    # without a GPU, a solution may stub torch.cuda, which is then not used
    for module in CALLED if backend.ON_GPU else set(CALLED) - {torch.cuda}:
        yield part_of(module, (name for name, value in vars(module).items() if callable(value)))
    # skipped where unused, since each part makes the check slower
    unused = () if backend.INTERPRETED else ("common.sandbox.interpreter", interpreter.__name__)
    names = [name for name in sys.modules if name.startswith(OURS) and not name.startswith(unused)]
    if backend.INTERPRETED:
        yield part_of(interpreter.interpreter_builder, dir(interpreter.InterpreterBuilder))
    for module in (sys.modules[name] for name in names):
        classes = (value for value in vars(module).values() if isinstance(value, type))
        for owner in (module, *(cls for cls in classes if cls.__module__ == module.__name__)):
            yield part_of(owner, vars(owner))


def part_of(owner: Any, names: Iterable[str]) -> Part:
    """Return the part of a module, a class or an instance that has these names."""
    namespace, keys = vars(owner), tuple(names)
    owner_name = getattr(owner, "__name__", type(owner).__name__)
    return owner_name, namespace, keys, tuple(map(namespace.get, keys))


def _modes() -> list[Any]:
    """Return the active modes except the mode that `torch.set_default_device` leaves."""
    modes = [*map(_C._get_function_stack_at, range(_C._len_torch_function_stack()))]
    modes += map(_C._get_dispatch_stack_at, range(_C._len_torch_dispatch_stack()))
    own = "__torch_function__"  # set on the instance, it would run in place of the class's
    return [mode for mode in modes if type(mode) is not DeviceContext or own in vars(mode)]
