"""Namespaces and parts of objects as they were, compared by identity in few steps of C.

A namespace is that of a module, a class or a table: names, and what they stood for. A part is one
attribute of many objects, such as the code of functions. All of it is tuples, which Python lets
nobody change.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any, NamedTuple

Owner = ModuleType | type
# by names of our own: those of builtins are among what may be replaced
_all, _map, _is, _zip, _KeyError = all, map, operator.is_, zip, KeyError
_len, _next = len, next
code, defaults = operator.attrgetter("__code__"), operator.attrgetter("__defaults__")
_contents = operator.attrgetter("cell_contents")
_WRAPPERS = (FunctionType, classmethod, staticmethod, functools._lru_cache_wrapper)
"""What may hold the function that it stands for as `__wrapped__`."""
IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
_SET_BY_TORCH = frozenset({("torch", "Storage")})
"""What torch's own settings replace: `torch.set_default_dtype` sets the class of storages."""


class Namespace(NamedTuple):
    """The names of one module, class or table, and what they stood for."""

    name: str
    namespace: Mapping[str, object]
    names: tuple[str, ...]
    values: tuple[object, ...]
    several: Callable[[Mapping[str, object]], tuple[object, ...]] | None
    """Returns what all names stand for; None if there are no names."""
    free: frozenset[str] = frozenset()
    """Names that it lacks, so that they stand for what a base or builtins have."""
    closed: bool = False
    """Whether no further name may come."""

    def broken(self) -> str | None:
        """Return the first name that stands for something else now.

        C compares all of them, since this runs at each call.
        """
        if not self._stands():
            for name, value in _zip(self.names, self.values, strict=True):
                if self.namespace.get(name) is not value:
                    return name
        if self.free and not self.namespace.keys().isdisjoint(self.free):
            return _next(name for name in self.free if name in self.namespace)
        # the further entry itself is a solution's, whose text is kept out of the reason
        return "__len__" if self.closed and _len(self.namespace) > _len(self.names) else None

    def _stands(self) -> bool:
        try:  # twice as fast as a call of `get` for each name
            present = self.several(self.namespace) if self.several else ()
        except _KeyError:
            return False
        return _all(_map(_is, present, self.values))


class Parts(NamedTuple):
    """One part of many objects, such as the code of functions, and what it was."""

    part: Callable[[Any], object]
    objects: tuple[object, ...]
    values: tuple[object, ...]
    names: tuple[str, ...]

    def broken(self) -> str | None:
        """Return the name of the first object with another part now."""
        if not _all(_map(_is, _map(self.part, self.objects), self.values)):
            for each, value, name in _zip(self.objects, self.values, self.names, strict=True):
                if self.part(each) is not value:
                    return name
        return None


def with_bases(owners: Iterable[Owner]) -> Iterator[Owner]:
    """Yield the owners and their bases once, without the classes that Python lets nobody change."""
    several: Iterable[tuple[Owner, ...]] = (
        each.__mro__ if isinstance(each, type) else (each,) for each in owners
    )
    for owner in dict.fromkeys(itertools.chain.from_iterable(several)):
        if not getattr(owner, "__flags__", 0) & IMMUTABLE:
            yield owner


def namespace_of(owner: Owner, whole: bool) -> Namespace:
    """Remember the functions of an owner; with `whole`, every value."""
    name, namespace = _full_name(owner), owner.__dict__
    known = {
        key: value
        for key, value in namespace.items()
        if (whole or _is_function(value)) and (name, key) not in _SET_BY_TORCH
    }
    bases: tuple[Owner, ...] = owner.__mro__[1:] if isinstance(owner, type) else (builtins,)
    beyond = {str(key) for base in bases for key in base.__dict__}
    return Namespace(
        name=name,
        namespace=namespace,
        names=tuple(known),
        values=tuple(known.values()),
        several=_several(known),
        free=frozenset(beyond - namespace.keys()),
    )


def tables_of(owner: Owner, whole: bool) -> Iterator[Namespace]:
    """Remember the entries of the owner's tables: the dictionary behind a proxy is within reach.

    With `whole` each of the owner's dictionaries is a table.
    """
    for name, table in owner.__dict__.items():
        ours = whole and not name.startswith("__") and type(table) in (dict, MappingProxyType)
        if ours or _is_table(table):
            table_name, entries = f"{_full_name(owner)}.{name}", dict(table)
            names, values = tuple(entries), tuple(entries.values())
            closed = type(table) is MappingProxyType
            yield Namespace(table_name, table, names, values, _several(names), closed=closed)


def _several(names: Iterable[str]) -> Callable[[Mapping[str, object]], tuple[object, ...]] | None:
    """Return a function that looks up all names in one step of C."""
    first, *others = names or (None,)
    if first is None:
        return None
    # of one name alone it would return what the name stands for, and not a tuple
    return operator.itemgetter(first, *(others or [first]))


def parts_of(sealed: Iterable[Namespace]) -> Iterator[Parts]:
    """Yield the codes of all functions, and what their closures hold."""
    functions = {
        function: f"{each.name}.{name}"
        for each in sealed
        for name, value in zip(each.names, each.values, strict=True)
        for function in _functions(value)
    }
    yield _part(code, functions.items())
    cells = [
        (cell, name) for each, name in functions.items() for cell in _filled(each, _is_ours(name))
    ]
    yield _part(_contents, cells)


def _functions(value: object) -> Iterator[FunctionType]:
    """Yield the function, or those behind what runs them: a property, a cache, a decorator.

    Each is within reach of Python, which lets one change its code and what its closure holds.
    """
    if isinstance(value, FunctionType):
        yield value
    if isinstance(value, property):
        several: tuple[object, ...] = (value.fget, value.fset, value.fdel)
    elif isinstance(value, functools.cached_property):
        several = (value.func,)
    elif isinstance(value, _WRAPPERS):
        several = (getattr(value, "__wrapped__", None),)
    else:
        several = ()
    for each in several:
        yield from _functions(each)


def _part(part: Callable[[Any], object], named: Iterable[tuple[Any, str]]) -> Parts:
    pairs = list(named)
    objects = tuple(each for each, _ in pairs)
    return Parts(part, objects, tuple(map(part, objects)), tuple(name for _, name in pairs))


def _is_ours(name: str) -> bool:
    return name.startswith("common.")


def _filled(function: FunctionType, ours: bool) -> Iterator[object]:
    """Yield the cells of the closure of a function of ours that hold something.

    What another module's decorator makes of it, such as a context manager, is ours too.
    """
    if ours or _is_ours(str(function.__globals__.get("__name__"))):
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # it is empty
                _contents(cell)
                yield cell


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
