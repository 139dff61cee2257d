"""Reductions and scans by any function, which combines blocks in the place of single elements.

Triton's interpreter calls the function for one element after the other; `tl.flip` and `tl.sort` are
many such reductions. Triton takes the function for associative. So one call combines all pairs of
neighbours, and the next all pairs of the results: ten calls for 1,024 elements. Where the function
decides on a value, which a block does not have, Triton's own way is taken.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from triton.runtime import interpreter

Arrays = list[np.ndarray]
"""The arrays that are reduced together, the axis in front."""
_COMBINING: list[Any] = []
"""The reduction or scan whose function runs on blocks now, if any."""


def install() -> None:
    """Apply these patches; call this once, before any kernel runs."""
    reductions, scans = interpreter.ReduceOps, interpreter.ScanOps
    reductions.generic_reduce = _or_by_elements(_reduce, reductions.generic_reduce)
    scans.generic_scan = _or_by_elements(_scan, scans.generic_scan)
    interpreter._patch_lang_tensor = _without_truth(interpreter._patch_lang_tensor)


def _or_by_elements(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def patched(self: Any, input: Any) -> Any:
        try:
            return ours(self, input)
        except Exception:  # Triton's way raises the function's own again
            return theirs(self, input)

    return patched


def _without_truth(patch: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Let no function decide on a block that stands for elements; for Triton each block is true."""

    @functools.wraps(patch)
    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        theirs = tensor.__bool__

        def truth(self: Any) -> bool:
            if _COMBINING and self.type.is_block():
                raise TypeError("a block is neither true nor false")
            return bool(theirs(self))

        scope.set_attr(tensor, "__bool__", truth)

    return patched


def _reduce(self: Any, input: Sequence[Any]) -> list[Any]:
    """Combine each element at an even place with the next one, until one is left."""
    given = (each.handle.data for each in input)
    arrays = [x.ravel() if self.axis is None else np.moveaxis(x, self.axis, 0) for x in given]
    while len(arrays[0]) > 1:
        arrays = _combined(self, input, [x[::2] for x in arrays], [x[1::2] for x in arrays])
    results = [x[0] for x in arrays]
    if self.keep_dims:
        gone = tuple(range(len(input[0].shape))) if self.axis is None else self.axis
        results = [np.expand_dims(x, gone) for x in results]
    return [self.to_tensor(x, each.dtype) for x, each in zip(results, input, strict=True)]


def _scan(self: Any, input: Sequence[Any]) -> list[Any]:
    """Combine each element with the one before it, the results with those two before, and so on."""
    arrays = [np.moveaxis(each.handle.data, self.axis, 0) for each in input]
    step = 1
    while step < len(arrays[0]):
        both = _combined(self, input, [np.roll(x, step, axis=0) for x in arrays], arrays)
        arrays = [np.concatenate([x[:step], y[step:]]) for x, y in zip(arrays, both, strict=True)]
        step *= 2
    results = [np.moveaxis(x, 0, self.axis) for x in arrays]
    return [self.to_tensor(x, each.dtype) for x, each in zip(results, input, strict=True)]


def _combined(self: Any, input: Sequence[Any], first: Arrays, second: Arrays) -> Arrays:
    """Return what the function makes of two blocks of each array, in the arrays' types."""
    pairs = zip([*first, *second], [*input, *input], strict=True)
    blocks = [self.to_tensor(x, each.dtype) for x, each in pairs]
    _COMBINING.append(self)
    try:
        made = self.combine_fn(*blocks)
    finally:
        _COMBINING.pop()
    several = made if isinstance(made, tuple) else (made,)
    return [
        np.broadcast_to(each.handle.data, x.shape).astype(x.dtype)
        for each, x in zip(several, first, strict=True)
    ]
