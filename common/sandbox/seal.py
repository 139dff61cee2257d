"""The seal: the tamper check, which finds what a solution replaced in its own process.

A solution shares its process with the code that calls and times it, and Python lets it replace any
of that code. The seal remembers the functions before the solution is loaded and compares them
whenever it returns; it also finds what a solution left behind to run later. An attack in native
code gets past it; `docs/grading.md` says what is promised.
"""

from __future__ import annotations

import _thread
import operator
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MappingProxyType, ModuleType

import torch
import triton
from torch.utils._device import DeviceContext

Owner = ModuleType | type
# by names of our own: those of builtins are among what may be replaced
_all, _map, _is, _code = all, map, operator.is_, operator.attrgetter("__code__")
_LIBRARIES = tuple(str(Path(module.__file__ or "").parent) for module in (torch, triton))
_MONITOR = "tqdm/_monitor.py"
"""A thread of the progress bars that torch.compile draws."""
IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
HOOK = "__torch_function__"
_IDLE = ("concurrent/futures/thread.py", "_worker")
"""Where a pool's thread waits for work: compilers keep such pools."""


@dataclass(frozen=True)
class _Sealed:
    """The functions of one module, class or table; other values are state, which may change."""

    name: str
    namespace: Mapping[str, object]
    functions: dict[str, object]
    codes: dict[FunctionType, CodeType]
    own: frozenset[str] = frozenset()
    inherited: frozenset[str] = frozenset()

    def broken(self) -> str | None:
        """Return the name of the first function that is another one now.

        C compares all of them, since this runs at each call.
        """
        now = _map(self.namespace.get, self.functions)
        if not _all(_map(_is, now, self.functions.values())):
            for name, value in self.functions.items():
                if self.namespace.get(name) is not value:
                    return name
        if not _all(_map(_is, _map(_code, self.codes), self.codes.values())):
            for function, code in self.codes.items():
                if function.__code__ is not code:
                    return function.__name__
        if self.inherited:
            for name in self.namespace.keys() - self.own:
                if name in self.inherited:
                    return name
        return None


class Seal:
    """The functions as they are now, and the threads, modes and handlers that would run later."""

    def __init__(self, owners: Iterable[Owner]) -> None:
        """Remember the functions of the owners, of their bases and of their tables."""
        parts = list(_with_bases(owners))
        tables = (table for part in parts for table in _tables(part))
        self._sealed = [*map(_seal, parts), *tables]
        # kept here, since replacing the functions that look for these would hide them
        self._trace, self._profile, self._frames = sys.gettrace, sys.getprofile, sys._current_frames
        self._me, self._handler = _thread.get_ident(), signal.getsignal
        self._stacks = (
            (torch._C._len_torch_function_stack, torch._C._get_function_stack_at),
            (torch._C._len_torch_dispatch_stack, torch._C._get_dispatch_stack_at),
        )
        self._handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}

    def broken(self) -> str | None:
        """Describe the first thing that was replaced or left behind: `json.dumps was replaced`."""
        for sealed in self._sealed:
            if name := sealed.broken():
                return f"{sealed.name}.{name} was replaced"
        if self._trace() or self._profile():
            return "a trace function was left behind"
        if self._has_mode():
            return "a mode was left behind"
        for number, handler in self._handlers.items():
            if self._handler(number) is not handler:
                name = getattr(number, "name", f"signal {number}")  # a real-time one has no name
                return f"a handler of {name} was left behind"
        for thread, frame in self._frames().items():
            if thread != self._me and _at_work(frame):
                code = frame.f_code
                where = f"{Path(code.co_filename).name}:{frame.f_lineno}"
                return f"a thread was left behind, in {code.co_name} of {where}"
        return None

    def _has_mode(self) -> bool:
        """Return whether a mode of dispatch or of functions is active.

        The mode that torch.set_default_device leaves is torch's own and does not count.
        """
        modes = (mode_at(i) for depth, mode_at in self._stacks for i in range(depth()))
        return any(type(mode) is not DeviceContext or HOOK in vars(mode) for mode in modes)


def _with_bases(owners: Iterable[Owner]) -> Iterator[Owner]:
    """Yield the owners and their bases, except for classes that Python lets nobody change."""
    for owner in owners:
        parts = owner.__mro__ if isinstance(owner, type) else (owner,)
        yield from (each for each in parts if not getattr(each, "__flags__", 0) & IMMUTABLE)


def _seal(owner: Owner) -> _Sealed:
    namespace = owner.__dict__
    functions = {name: value for name, value in namespace.items() if _is_function(value)}
    bases = owner.__mro__[1:] if isinstance(owner, type) else ()
    return _Sealed(
        name=_full_name(owner),
        namespace=namespace,
        functions=functions,
        codes=_codes(functions),
        own=frozenset(namespace),
        inherited=frozenset(name for base in bases for name in base.__dict__),
    )


def _tables(owner: Owner) -> Iterator[_Sealed]:
    """Seal the entries of the owner's tables: the dictionary behind a proxy is within reach."""
    for name, table in owner.__dict__.items():
        if _is_table(table):
            entries = dict(table)
            yield _Sealed(f"{_full_name(owner)}.{name}", table, entries, _codes(entries))


def _codes(functions: Mapping[str, object]) -> dict[FunctionType, CodeType]:
    return {f: f.__code__ for f in functions.values() if isinstance(f, FunctionType)}


def _full_name(owner: Owner) -> str:
    if isinstance(owner, ModuleType):
        return owner.__name__
    return f"{owner.__module__}.{owner.__qualname__}"


def _is_function(value: object) -> bool:
    """Return whether the value is callable, or acts as a function: a property, a slot, a table."""
    return callable(value) or hasattr(type(value), "__get__") or _is_table(value)


def _is_table(value: object) -> bool:
    """Return whether the value is a read-only mapping of functions, as a table of requests is."""
    return type(value) is MappingProxyType and all(map(callable, value.values()))


def _at_work(frame: FrameType) -> bool:
    """Return whether a thread is a solution's: no idle pool, no thread of torch's or Triton's."""
    if frame.f_code.co_name == _IDLE[1] and frame.f_code.co_filename.endswith(_IDLE[0]):
        return False
    caller: FrameType | None = frame
    while caller:
        file = caller.f_code.co_filename
        if file.startswith(_LIBRARIES) or file.endswith(_MONITOR):
            return False
        caller = caller.f_back
    return True
