"""The tamper check: what a solution replaced in its own process, or left behind to run later.

What decides a verdict stands outside of that process. Inside are the functions that call a
solution, time it, and fill and copy memory; they are compared by identity. Work that waits until a
call has been timed is looked for too. `docs/grading.md` says what gets past this.
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
"""A name, and a function with the keys that it takes and the values that it returned for them."""
CALLED = (builtins, time, torch.autograd, torch.cuda, sys.modules[DeviceContext.__module__])
CLASSES = (torch.Tensor, torch.UntypedStorage, torch.cuda.Event, torch.cuda.Stream, DeviceContext)
ALLOCATES = ("empty", "empty_like", "empty_strided", "full", "zeros", "set_grad_enabled", "no_grad")
"""What of Python's and torch's calls a solution, times it, and fills and copies memory."""
OURS = ("common.sandbox", "common.arena")
LIBRARIES = tuple(str(Path(str(module.__file__)).parent) for module in (torch, triton))
POOLS = (
    *(str(Path(each.__code__.co_filename).parent) for each in (_pool_worker, _worker)),
    *(selectors.__file__, threading.__file__, selectors.SelectorKey.__new__.__code__.co_filename),
)
"""Where the threads of Python's own pools wait."""
HOOK = "__torch_function__"
WAITS, PAUSE = 100, 0.01
"""Looks at the threads of a call that raised, and the seconds between two."""


class Seal:
    """A process as it was before its solution was loaded."""

    def __init__(self, parts: Iterable[Part]) -> None:
        """Remember what may not be replaced, and what is there already that could run later."""
        self.parts = tuple(parts)
        self.handlers = {each: signal.getsignal(each) for each in signal.valid_signals()}
        self.callbacks = {*map(id, gc.callbacks)}
        self.threads = {*sys._current_frames()}

    def check(self) -> None:
        """Raise Refused, TAMPERED, where something was replaced or left behind."""
        for owner, part, keys, values in self.parts:
            for key in compress(keys, map(operator.is_not, map(part, keys), values)):
                name = getattr(key, "__name__", key)
                raise Refused("TAMPERED", f"{owner}.{name} was replaced")
        if what := next(self._left_behind(), None):
            raise Refused("TAMPERED", f"{what} was left behind")

    def _left_behind(self) -> Iterator[str]:
        if sys.gettrace() or sys.getprofile():
            yield "a trace function"
        if _modes():
            yield "a mode"
        for number, handler in self.handlers.items():
            if signal.getsignal(number) is not handler:
                yield f"a handler of {getattr(number, 'name', f'signal {number}')}"
        if not all(
            id(callback) in self.callbacks or _is_a_librarys(callback) for callback in gc.callbacks
        ):
            yield "a callback of the garbage collector"
        for frame in self._at_work():
            where = f"{frame.f_code.co_name} of {Path(frame.f_code.co_filename).name}"
            yield f"a thread that neither ended nor waits in a pool, in {where},"

    def _at_work(self) -> list[FrameType]:
        """Return the frames of a solution's threads; a name for all would hold this one too."""
        return [
            f for t, f in sys._current_frames().items() if t not in self.threads and _at_work(f)
        ]

    def await_threads(self) -> None:
        """Wait a moment for threads at work: where one of a pool raises, the others go on."""
        for _ in range(WAITS):
            if not self._at_work():
                return
            time.sleep(PAUSE)


def parts() -> Iterator[Part]:
    """Yield what calls a solution and times it here: all of ours, and the functions of others."""
    yield part_of(torch, ALLOCATES)
    for module in CALLED:
        yield part_of(module, (name for name, each in vars(module).items() if callable(each)))
    yield from (part_of(each, dir(each)) for each in CLASSES)
    unused = () if backend.INTERPRETED else ("common.sandbox.interpreter",)  # a look takes time
    names = (each for each in sys.modules if each.startswith(OURS) and not each.startswith(unused))
    modules: list[Any] = [sys.modules[name] for name in names]
    if backend.INTERPRETED:
        modules.append(interpreter)
        builder = interpreter.interpreter_builder
        yield part_of(builder, set(dir(type(builder))) - set(vars(builder)))
    for module in modules:
        several = (each for each in vars(module).values() if isinstance(each, type))
        for owner in (module, *(each for each in several if each.__module__ == module.__name__)):
            functions = [each for each in vars(owner).values() if isinstance(each, FunctionType)]
            codes = tuple(function.__code__ for function in functions)
            yield owner.__name__, operator.attrgetter("__code__"), tuple(functions), codes
            yield part_of(owner, vars(owner))


def part_of(owner: Any, names: Iterable[str]) -> Part:
    """Return what names of a module, a class (past its slow proxy) or an instance stand for."""
    known = gc.get_referents(vars(owner))[0] if isinstance(owner, type) else vars(owner)
    keys, name = tuple(names), getattr(owner, "__name__", type(owner).__name__)
    return name, known.get, keys, tuple(map(known.get, keys))


def _modes() -> list[Any]:
    """Return the active modes but the one that `torch.set_default_device` leaves."""
    C = torch._C
    modes = [C._get_function_stack_at(i) for i in range(C._len_torch_function_stack())]
    modes += [C._get_dispatch_stack_at(i) for i in range(C._len_torch_dispatch_stack())]
    return [mode for mode in modes if type(mode) is not DeviceContext or HOOK in vars(mode)]


def _is_a_librarys(callback: Any) -> bool:
    """Return whether a callback is a plain function of a file elsewhere, as JAX leaves one."""
    if not isinstance(callback, FunctionType) or callback.__closure__ or callback.__defaults__:
        return False
    file = Path(callback.__code__.co_filename)
    return file.is_file() and not file.is_relative_to(sys.path[0])


def _at_work(frame: FrameType) -> bool:
    """Return whether a thread is a solution's: no idle pool, no thread of torch's or Triton's."""
    stack = [each for each, _ in walk_stack(frame)]
    files = [each.f_code.co_filename for each in stack]
    if any(file.startswith(LIBRARIES) or file.endswith("tqdm/_monitor.py") for file in files):
        return False  # torch.compile draws bars of progress
    return not (all(file.startswith(POOLS) for file in files) and any(map(_is_idle, stack)))


def _is_idle(frame: FrameType) -> bool:
    """Return whether a frame of a pool's has no task: it waits, or tells the result of the last."""
    code, names = frame.f_code, frame.f_locals
    if code is _worker.__code__:
        task = names.get("work_item")
        return task is None or (type(task) is _WorkItem and task.future.done())
    if code is _pool_worker.__code__:
        finished = names.get("func") is None or names.get("result") is not None
        return "completed" in names and finished  # else it runs its initializer
    return code.co_name.startswith("_handle_")
