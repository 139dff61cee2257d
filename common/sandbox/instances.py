"""Instances of the harness, compared as modules are: their attributes, and names that hide methods.

A solution finds them in the frames above it. `WATCH.check = print` hides a method from everyone who
calls it on that instance, and no class changes.
"""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any, NamedTuple

_type, _get, _zip = type, getattr, zip


class Held(NamedTuple):
    """An instance, its class, and some of its attributes as they were."""

    name: str
    instance: object
    kind: type
    attributes: tuple[str, ...]
    values: tuple[object, ...]
    methods: frozenset[str]
    """The names of the class that no attribute of the instance may hide."""

    def broken(self) -> str | None:
        """Return the first attribute that is another one now, or that hides a method."""
        if _type(self.instance) is not self.kind:
            return "__class__"
        for name, value in _zip(self.attributes, self.values, strict=True):
            if _get(self.instance, name, None) is not value:
                return name
        if self.methods.isdisjoint(_get(self.instance, "__dict__", ())):
            return None
        return next(name for name in self.instance.__dict__ if name in self.methods)


def hold(instance: object, name: str, *attributes: str) -> Held:
    """Remember attributes of an instance, named `name` in a reason.

    An instance that may change has some attributes named; of a frozen one, without any named, all
    that it has count.
    """
    kind: Any = type(instance)
    frozen = getattr(getattr(kind, "__dataclass_params__", None), "frozen", False)
    counted = attributes or (tuple(vars(instance)) if frozen else ())
    values = tuple(getattr(instance, each) for each in counted)
    return Held(name, instance, kind, counted, values, _methods(kind))


@functools.cache
def _methods(kind: Any) -> frozenset[str]:
    return frozenset(
        name
        for base in kind.__mro__
        for name, value in vars(base).items()
        if isinstance(value, FunctionType | property | classmethod | staticmethod)
    )
