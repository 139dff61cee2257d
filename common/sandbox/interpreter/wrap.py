"""Patching of Triton: replace a function by a wrapper that receives the original function.

For example, after `wrap(interpreter, "_get_np_dtype", wrapper)`, `_get_np_dtype(dtype)` calls
`wrapper(original, dtype)`, where `original` is Triton's own `_get_np_dtype`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any


def wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Wrap the function that a module or a class has under this name."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def patched(*args: Any, **named: Any) -> Any:
        return wrapper(original, *args, **named)

    setattr(owner, name, patched)


@contextlib.contextmanager
def wrapped(owner: Any, name: str, wrapper: Callable[..., Any]) -> Iterator[None]:
    """Wrap a function for the length of the block."""
    original = getattr(owner, name)
    wrap(owner, name, wrapper)
    try:
        yield
    finally:
        setattr(owner, name, original)
