"""One way to patch Triton: a function of ours in the place of one of its own, which ours is given.

For example, after `wrap(interpreter, "_get_np_dtype", ours)` a call of `_get_np_dtype(kind)` is
`ours(known, kind)`, where `known` is what stood there before.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any


def wrap(owner: Any, name: str, ours: Callable[..., Any]) -> None:
    """Put a function around the one that a module or a class has under this name."""
    known = getattr(owner, name)

    @functools.wraps(known)
    def patched(*args: Any, **named: Any) -> Any:
        return ours(known, *args, **named)

    setattr(owner, name, patched)


@contextlib.contextmanager
def wrapped(owner: Any, name: str, ours: Callable[..., Any]) -> Iterator[None]:
    """Put a function around another for a while."""
    known = getattr(owner, name)
    wrap(owner, name, ours)
    try:
        yield
    finally:
        setattr(owner, name, known)
