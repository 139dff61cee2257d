"""The tamper check: objects that a solution replaced in its process, or left behind to run later.

The harness decides verdicts in another process. This process holds the functions that call a
solution, time it, and fill and copy memory; the check compares them by identity. It also looks for
threads and modes of torch that could work after a call. `docs/grading.md` lists the attacks that
this check misses.
"""

from __future__ import annotations

import builtins
import gc
import operator
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import compress
from typing import Any

import torch
from torch.utils._device import DeviceContext
from triton.runtime import interpreter

from common.sandbox import backend
from common.sandbox.failures import Refused

Part = tuple[str, Mapping[str, object], tuple[str, ...], tuple[object, ...]]
"""An owner's name, its namespace, some keys of it, and the values of the keys."""
CALLED = (builtins, time, torch.autograd, torch.cuda, sys.modules[DeviceContext.__module__])
CLASSES = (torch.Tensor, torch.UntypedStorage, torch.cuda.Event, torch.cuda.Stream, DeviceContext)
ALLOCATES = ("empty", "empty_like", "empty_strided", "full", "zeros", "set_grad_enabled", "no_grad")
"""The functions of Python and torch that call a solution, time it, and fill and copy memory: those
of the modules CALLED and of the CLASSES, and torch's functions ALLOCATES."""
OURS = ("common.sandbox", "common.arena")
POOLS = ("concurrent.futures.", "multiprocessing.pool", "torch.", "triton.", "tqdm.")
"""The modules whose threads may remain: Python's pools, and those of torch.compile."""
HOOK = "__torch_function__"


class Seal:
    """The state of a process before its solution is loaded."""

    def __init__(self, parts: Iterable[Part]) -> None:
        """Record the parts that must not be replaced, and the threads."""
        self.parts = tuple(parts)
        self.threads = {*sys._current_frames()}

    def check(self) -> None:
        """Raise Refused, TAMPERED, if a part was replaced, or a thread or mode was left behind."""
        for owner, namespace, keys, values in self.parts:
            for key in compress(keys, map(operator.is_not, map(namespace.get, keys), values)):
                raise Refused("TAMPERED", f"{owner}.{key} was replaced")
        if _modes():
            raise Refused("TAMPERED", "a mode was left behind")
        if new := {ident for ident in sys._current_frames() if ident not in self.threads}:
            of_pools = {thread.ident for thread in threading.enumerate() if _is_of_pool(thread)}
            if new - of_pools:
                raise Refused("TAMPERED", "a thread that belongs to no pool was left behind")


def _is_of_pool(thread: threading.Thread) -> bool:
    function = getattr(thread, "_target", None) or type(thread)
    return str(function.__module__).startswith(POOLS)


def sealed_parts() -> Iterator[Part]:
    """Yield the parts that call and time a solution: the harness's, Python's and torch's."""
    yield part_of(torch, ALLOCATES)
    # without a GPU, a solution may stub torch.cuda, which is then not used
    for module in CALLED if backend.ON_GPU else set(CALLED) - {torch.cuda}:
        yield part_of(module, (name for name, value in vars(module).items() if callable(value)))
    yield from (part_of(owner, dir(owner)) for owner in CLASSES)
    # skipped where unused, since each part makes the check slower
    unused = () if backend.INTERPRETED else ("common.sandbox.interpreter",)
    names = (name for name in sys.modules if name.startswith(OURS) and not name.startswith(unused))
    modules: list[Any] = [sys.modules[name] for name in names]
    if backend.INTERPRETED:
        modules.append(interpreter)
        builder = interpreter.interpreter_builder
        yield part_of(builder, set(dir(type(builder))) - set(vars(builder)))
    for module in modules:
        classes = (value for value in vars(module).values() if isinstance(value, type))
        for owner in (module, *(cls for cls in classes if cls.__module__ == module.__name__)):
            yield part_of(owner, vars(owner))


def part_of(owner: Any, names: Iterable[str]) -> Part:
    """Return the part of a module's, a class's or an instance's attributes that have these names.

    A class's dict is read without its mappingproxy, which is slow.
    """
    namespace = gc.get_referents(vars(owner))[0] if isinstance(owner, type) else vars(owner)
    keys, name = tuple(names), getattr(owner, "__name__", type(owner).__name__)
    return name, namespace, keys, tuple(map(namespace.get, keys))


def _modes() -> list[Any]:
    """Return the active modes except the mode that `torch.set_default_device` leaves."""
    C = torch._C
    modes = [C._get_function_stack_at(i) for i in range(C._len_torch_function_stack())]
    modes += [C._get_dispatch_stack_at(i) for i in range(C._len_torch_dispatch_stack())]
    return [mode for mode in modes if type(mode) is not DeviceContext or HOOK in vars(mode)]
