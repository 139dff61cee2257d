"""The tamper check: objects that a solution replaced in its process, or left behind to run later.

The harness decides verdicts in another process. This process holds the functions that call a
solution, time it, and fill and copy memory; the check compares them by identity. It also looks for
work that is deferred until a call has been timed. `docs/grading.md` lists the attacks that this
check misses.
"""

from __future__ import annotations

import builtins
import gc
import operator
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.thread import _worker, _WorkItem
from itertools import compress
from multiprocessing.pool import worker as _pool_worker  # type: ignore[attr-defined]
from pathlib import Path
from traceback import walk_stack
from types import FrameType, FunctionType
from typing import Any

import torch
import triton
from torch.utils._device import DeviceContext
from triton.runtime import interpreter

from common.sandbox import backend
from common.sandbox.failures import Refused

Part = tuple[str, Callable[[Any], object], tuple[Any, ...], tuple[object, ...]]
"""An owner's name, a lookup function, its keys, and the values that it returned for the keys."""
CALLED = (builtins, time, torch.autograd, torch.cuda, sys.modules[DeviceContext.__module__])
CLASSES = (torch.Tensor, torch.UntypedStorage, torch.cuda.Event, torch.cuda.Stream, DeviceContext)
ALLOCATES = ("empty", "empty_like", "empty_strided", "full", "zeros", "set_grad_enabled", "no_grad")
"""The functions of Python and torch that call a solution, time it, and fill and copy memory: those
of the modules CALLED and of the CLASSES, and torch's functions ALLOCATES."""
OURS = ("common.sandbox", "common.arena")
LIBRARIES = tuple(str(Path(str(module.__file__)).parent) for module in (torch, triton))
POOLS = (
    *(str(Path(function.__code__.co_filename).parent) for function in (_pool_worker, _worker)),
    *(selectors.__file__, threading.__file__, selectors.SelectorKey.__new__.__code__.co_filename),
)
"""The files and folders of the frames of an idle thread of Python's own pools."""
HOOK = "__torch_function__"
WAITS, PAUSE = 100, 0.01
"""The number of checks for working threads after a call raised, and the seconds between checks."""


class Seal:
    """The state of a process before its solution is loaded."""

    def __init__(self, parts: Iterable[Part]) -> None:
        """Record the parts that must not be replaced, and the handlers, callbacks and threads."""
        self.parts = tuple(parts)
        self.handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        self.callbacks = {*map(id, gc.callbacks)}
        self.threads = {*sys._current_frames()}

    def check(self) -> None:
        """Raise Refused, TAMPERED, if a part was replaced or deferred work was left behind."""
        for owner, look_up, keys, values in self.parts:
            for key in compress(keys, map(operator.is_not, map(look_up, keys), values)):
                name = getattr(key, "__name__", key)
                raise Refused("TAMPERED", f"{owner}.{name} was replaced")
        if leftover := next(self._leftovers(), None):
            raise Refused("TAMPERED", f"{leftover} was left behind")

    def _leftovers(self) -> Iterator[str]:
        if sys.gettrace() or sys.getprofile():
            yield "a trace function"
        if _modes():
            yield "a mode"
        for number, handler in self.handlers.items():
            if signal.getsignal(number) is not handler:
                yield f"a handler of {getattr(number, 'name', f'signal {number}')}"
        if not all(
            id(callback) in self.callbacks or _is_of_library(callback) for callback in gc.callbacks
        ):
            yield "a callback of the garbage collector"
        for frame in self._working_frames():
            where = f"{frame.f_code.co_name} of {Path(frame.f_code.co_filename).name}"
            yield f"a thread that neither ended nor waits in a pool, in {where},"

    def _working_frames(self) -> list[FrameType]:
        """Return the frames of the solution's working threads.

        A variable for `sys._current_frames()` would be a reference cycle with this frame.
        """
        return [
            f for t, f in sys._current_frames().items() if t not in self.threads and _at_work(f)
        ]

    def await_threads(self) -> None:
        """Wait a moment for working threads: if a pool's thread raises, the others continue."""
        for _ in range(WAITS):
            if not self._working_frames():
                return
            time.sleep(PAUSE)


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
            functions = [value for value in vars(owner).values() if isinstance(value, FunctionType)]
            codes = tuple(function.__code__ for function in functions)
            yield owner.__name__, operator.attrgetter("__code__"), tuple(functions), codes
            yield part_of(owner, vars(owner))


def part_of(owner: Any, names: Iterable[str]) -> Part:
    """Return the part of a module's, a class's or an instance's attributes that have these names.

    A class's dict is read without its mappingproxy, which is slow.
    """
    namespace = gc.get_referents(vars(owner))[0] if isinstance(owner, type) else vars(owner)
    keys, name = tuple(names), getattr(owner, "__name__", type(owner).__name__)
    return name, namespace.get, keys, tuple(map(namespace.get, keys))


def _modes() -> list[Any]:
    """Return the active modes except the mode that `torch.set_default_device` leaves."""
    C = torch._C
    modes = [C._get_function_stack_at(i) for i in range(C._len_torch_function_stack())]
    modes += [C._get_dispatch_stack_at(i) for i in range(C._len_torch_dispatch_stack())]
    return [mode for mode in modes if type(mode) is not DeviceContext or HOOK in vars(mode)]


def _is_of_library(callback: Any) -> bool:
    """Return whether a callback is a plain function of a library's file, such as JAX's callback."""
    if not isinstance(callback, FunctionType) or callback.__closure__ or callback.__defaults__:
        return False
    file = Path(callback.__code__.co_filename)
    return file.is_file() and not file.is_relative_to(sys.path[0])


def _at_work(frame: FrameType) -> bool:
    """Return whether a thread runs a solution's work: not an idle pool's, torch's or Triton's."""
    stack = [outer for outer, _ in walk_stack(frame)]
    files = [outer.f_code.co_filename for outer in stack]
    if any(file.startswith(LIBRARIES) or file.endswith("tqdm/_monitor.py") for file in files):
        return False  # tqdm draws torch.compile's progress bars
    return not (all(file.startswith(POOLS) for file in files) and any(map(_is_idle, stack)))


def _is_idle(frame: FrameType) -> bool:
    """Return whether a frame of a pool's thread has no task, or only reports a task's result."""
    code, names = frame.f_code, frame.f_locals
    if code is _worker.__code__:
        task = names.get("work_item")
        return task is None or (type(task) is _WorkItem and task.future.done())
    if code is _pool_worker.__code__:
        finished = names.get("func") is None or names.get("result") is not None
        return "completed" in names and finished  # without `completed`, it runs its initializer
    return code.co_name.startswith("_handle_")
