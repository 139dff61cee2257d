"""The seal: the tamper check, which finds what a solution replaced in its own process.

A solution shares its process with the code that calls and times it, and Python lets it replace any
of that code. The seal remembers the functions before the solution is loaded, and the harness's own
values, and compares them whenever it returns; it also finds what a solution left behind to run
later. The seal itself is made of tuples and of what else Python lets nobody change. An attack in
native code gets past it; `docs/grading.md` says what is promised.
"""

from __future__ import annotations

import _thread
import concurrent.futures.thread
import gc
import multiprocessing.dummy
import multiprocessing.pool
import multiprocessing.queues
import multiprocessing.synchronize
import operator
import os
import re
import selectors
import signal
import site
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType, FunctionType, MappingProxyType, ModuleType
from typing import Any, NamedTuple

import torch
import triton
from torch.utils._device import DeviceContext

from common.sandbox.instances import Held, hold
from common.sandbox.namespaces import (
    Namespace,
    Owner,
    Parts,
    code,
    defaults,
    namespace_of,
    parts_of,
    tables_of,
    with_bases,
)

Root = tuple[Callable[[Any], object], tuple[Any, ...], tuple[object, ...]]
_any, _type, _tuple = any, type, tuple  # by names of our own, since the others may be replaced
_LIBRARIES = tuple(str(Path(module.__file__ or "").parent) for module in (torch, triton))
_INSTALLED = tuple(
    path.rstrip(os.sep) + os.sep
    for path in (
        *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")),
        *(*site.getsitepackages(), site.getusersitepackages()),
        *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
    )
)
"""The folders of installed packages."""
_MONITOR = "tqdm/_monitor.py"
"""A thread of the progress bars that torch.compile draws."""
HOOK = "__torch_function__"
_TASK = re.compile(
    r"(initializer|\bfn|func|callback|\bmap|starmap|ctx\.run|work_item\.run|islice)\("
    r"|in (taskseq|enumerate\()"
)
"""What a line of a pool has that runs a task, which need be no Python function. Nor need an item of
a pool's queue be the pool's own: a solution can put any object there."""
_POOLS = MappingProxyType(
    {
        file: frozenset(
            number
            for number, line in enumerate(Path(file).read_text().splitlines(), start=1)
            if _TASK.search(line)
        )
        for module in (concurrent.futures.thread, concurrent.futures._base, multiprocessing.pool)
        for file in [str(module.__file__)]
    }
)
"""The files of Python's own pools, which compilers keep too, and their lines that run tasks."""
_WAITING = frozenset(
    str(module.__file__)
    for module in (
        *(multiprocessing.connection, multiprocessing.dummy, multiprocessing.queues),
        *(multiprocessing.reduction, multiprocessing.synchronize, selectors, threading),
    )
)
"""The files where a pool's threads wait, or tell each other of a change."""
_KEY = selectors.SelectorKey.__new__.__code__
"""The one function of these that has no file."""
WAITS, PAUSE = 100, 0.01
"""Looks at the threads of a call that raised, and the seconds between two."""


class Seal(NamedTuple):
    """The functions as they were, and the threads, modes and handlers that would run later."""

    sealed: tuple[Namespace, ...]
    parts: tuple[Parts, ...]
    near: tuple[Namespace, ...]
    near_parts: tuple[Parts, ...]
    held: tuple[Held, ...]
    handlers: tuple[tuple[int, object], ...]
    # kept here, since replacing the functions that look for these would hide them
    me: int
    frames: Callable[[], dict[int, FrameType]]
    watchers: tuple[Callable[[], object], ...]
    collected: tuple[Collection[object], tuple[object, ...]]
    handler: Callable[[int], object]
    stacks: tuple[tuple[Callable[[], int], Callable[[int], object]], ...]

    @classmethod
    def of(
        cls,
        owners: Iterable[Owner],
        ours: Sequence[ModuleType] = (),
        instances: Iterable[Held] = (),
        near: Collection[str] = (),
    ) -> Seal:
        """Remember the functions of the owners, of their bases and of their tables.

        Args:
            owners: Modules and classes; their values other than functions are state and may change.
            ours: Those among them that are the harness's, of which every value counts, down to the
                entries of its dictionaries and the attributes of its instances.
            instances: Further instances.
            near: Names of modules; they and their classes are compared where little time is left.
        """
        whole = {id(module) for module in ours}
        several = list(with_bases(owners))
        tables = [table for owner in several for table in tables_of(owner, id(owner) in whole)]
        sealed = (*(namespace_of(owner, id(owner) in whole) for owner in several), *tables)
        close = tuple(each for each in sealed if _is_within(each.name, near))
        return cls(
            sealed=sealed,
            parts=tuple(parts_of(sealed)),
            near=close,
            near_parts=tuple(parts_of(close)),
            held=(*(each for module in ours for each in _instances(module)), *instances),
            handlers=tuple((each, signal.getsignal(each)) for each in signal.valid_signals()),
            me=_thread.get_ident(),
            frames=sys._current_frames,
            watchers=(sys.gettrace, sys.getprofile),
            collected=(gc.callbacks, tuple(gc.callbacks)),
            handler=signal.getsignal,
            stacks=(
                (torch._C._len_torch_function_stack, torch._C._get_function_stack_at),
                (torch._C._len_torch_dispatch_stack, torch._C._get_dispatch_stack_at),
            ),
        )

    def broken(self, *also: Held, near: bool = False) -> str | None:
        """Describe the first thing that was replaced or left behind: `json.dumps was replaced`.

        Args:
            also: Instances to compare beside the sealed ones.
            near: Leave out what is not near, and look for no threads or handlers of signals.
        """
        for group in (self.near if near else self.sealed, self.held, also):
            for sealed in group:
                if name := sealed.broken():
                    return f"{sealed.name}.{name} was replaced"
        for part in self.near_parts if near else self.parts:
            if name := part.broken():
                return f"{name} was replaced"
        return self._watching() or (None if near else self._left_behind())

    def _watching(self) -> str | None:
        if _any(watcher() for watcher in self.watchers):
            return "a trace function was left behind"
        return "a mode was left behind" if self._has_mode() else None

    def _left_behind(self) -> str | None:
        for number, handler in self.handlers:
            if self.handler(number) is not handler:
                name = getattr(number, "name", f"signal {number}")  # a real-time one has no name
                return f"a handler of {name} was left behind"
        callbacks, before = self.collected
        known = {*map(id, before)}  # an object of the solution's may say that it equals one of them
        if _any(id(each) not in known and not _is_a_librarys(each) for each in _tuple(callbacks)):
            return "a callback of the garbage collector was left behind"
        for frame in self._at_work():
            where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            behind = f"a thread was left behind, in {frame.f_code.co_name} of {where}"
            return f"{behind}: end it, or let it wait in a pool of concurrent.futures"
        return None

    def _at_work(self) -> list[FrameType]:
        """Return the frames of other threads that are a solution's, and at work."""
        frames = self.frames()
        # this one would hold itself, and by that all results of the call under way
        frames.pop(self.me, None)
        return [frame for frame in frames.values() if _at_work(frame)]

    def await_threads(self) -> None:
        """Wait a moment for threads at work: where one of a pool raises, the others go on."""
        for _ in range(WAITS):
            if not self._at_work():
                return
            time.sleep(PAUSE)

    def _has_mode(self) -> bool:
        """Return whether a mode of dispatch or of functions is active.

        The mode that torch.set_default_device leaves is torch's own and does not count.
        """
        modes = (mode_at(i) for depth, mode_at in self.stacks for i in range(depth()))
        return _any(_type(mode) is not DeviceContext or HOOK in vars(mode) for mode in modes)


def _is_within(name: str, modules: Collection[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _instances(module: ModuleType) -> Iterator[Held]:
    """Hold each value of the module that is an instance of a class of ours."""
    for name, value in vars(module).items():
        if type(value).__module__.startswith("common.") and not isinstance(value, type):
            yield hold(value, f"{module.__name__}.{name}")


def roots(instance: object, functions: Iterable[Callable[..., object]]) -> tuple[Root, ...]:
    """Return what the seal rests on, for a loop that needs no function that can be replaced.

    These are the seal's own code, the instance that holds the seal, and the functions that report.
    A root is `(part, objects, values)`: the part of each object is the value beside it.
    """
    kinds = (Seal, Namespace, Held, type(instance))
    modules = [sys.modules[kind.__module__] for kind in kinds]
    classes = (each for module in modules for each in vars(module).values())
    owners = (*modules, *(each for each in classes if _module_of(each).startswith("common.")))
    sealed = tuple(namespace_of(owner, True) for owner in owners)
    codes = [(each.part, each.objects, each.values) for each in parts_of(sealed)]
    held = vars(instance)
    kept = tuple(name for name, value in held.items() if isinstance(value, Seal | FunctionType))
    hidden = tuple(name for name in vars(type(instance)) if name not in held)
    several = tuple(functions)
    return (
        *((each.namespace.get, each.names, each.values) for each in sealed),
        *codes,
        (type, (instance,), (type(instance),)),
        (operator.attrgetter("__dict__"), (instance,), (held,)),
        (held.get, (*kept, *hidden), (*map(held.get, kept), *(None for _ in hidden))),
        (code, several, tuple(map(code, several))),
        (defaults, several, tuple(map(defaults, several))),
    )


def _module_of(value: object) -> str:
    return value.__module__ if isinstance(value, type) else ""


def _is_between_tasks(frame: FrameType) -> bool:
    """Return whether a thread of one of Python's own pools runs no task.

    It may wait for one, or tell the result of the last, after which its caller goes on.
    """
    line: tuple[str, int | None] | None = None
    caller: FrameType | None = frame
    while caller:
        file = caller.f_code.co_filename
        if file in _POOLS:
            line = line or (file, caller.f_lineno)
        elif file not in _WAITING and caller.f_code is not _KEY:
            return False
        caller = caller.f_back
    return line is not None and line[1] not in _POOLS[line[0]]


def _is_a_librarys(callback: object) -> bool:
    """Return whether a callback of the collector is a plain function of an installed module.

    JAX leaves one when it is imported, as TransformerEngine and CUTLASS do where it is installed.
    One that holds other functions, as a closure does, may call a solution's.
    """
    if not isinstance(callback, FunctionType) or callback.__closure__ or callback.__defaults__:
        return False
    file = callback.__code__.co_filename
    module = sys.modules.get(callback.__module__)
    known = vars(module).get(callback.__name__) if module else None
    return known is callback and file.startswith(_INSTALLED) and not file.startswith(sys.path[0])


def _at_work(frame: FrameType) -> bool:
    """Return whether a thread is a solution's: no idle pool, no thread of torch's or Triton's."""
    if _is_between_tasks(frame):
        return False
    caller: FrameType | None = frame
    while caller:
        file = caller.f_code.co_filename
        if file.startswith(_LIBRARIES) or file.endswith(_MONITOR):
            return False
        caller = caller.f_back
    return True
