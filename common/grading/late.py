"""Values that are computed when one of them is first asked for, once for all threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")
W = TypeVar("W")


class Once(Generic[T]):
    """A function's result, computed at the first call."""

    def __init__(self, make: Callable[[], T]) -> None:
        """Keep the function, which is let go once it has been called."""
        self._make: Callable[[], T] | None = make
        self._lock = threading.Lock()

    @property
    def known(self) -> bool:
        """Whether the result is there."""
        return self._make is None

    def __call__(self) -> T:
        """Return the result; where the function raises, the next call makes it again."""
        with self._lock:
            if self._make is not None:
                self._result = self._make()
                self._make = None
            return self._result


class Late(Mapping[str, T], Generic[T, W]):
    """A mapping whose names are known before its values."""

    def __init__(
        self, names: tuple[str, ...], once: Once[W], part: Callable[[W], Mapping[str, T]]
    ) -> None:
        """Keep the names, the computation, and the part of its result that holds the values."""
        self._names, self._once, self._part = names, once, part

    @property
    def known(self) -> bool:
        """Whether the values are there."""
        return self._once.known

    def __getitem__(self, name: str) -> T:
        """Return a value; the first one takes the time of all."""
        if name not in self._names:
            raise KeyError(name)
        return self._part(self._once())[name]

    def __contains__(self, name: object) -> bool:
        """Return whether there is such a value, without computing it."""
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._names)

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._names)
