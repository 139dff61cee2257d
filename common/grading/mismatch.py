"""Describe the wrong elements of a result in the op's terms.

For example: "positions 1 to 6 (0 is right), features 0 to 7 of 0 to 15 (the first half of what is
rotated), every batch and head".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch

from common.spec import ORDINALS, Axis

MOST_LISTED = 4
"""The most single indices that are listed."""
MOST_RIGHT = 2
"""The most right indices that are listed after a range."""
RUNS = 3
"""The most ranges that are listed."""
WITHIN = 3
"""The fewest wrong indices for which "within" a part is reported."""


def describe(mask: torch.Tensor, axes: Sequence[Axis]) -> str:
    """Return the wrong elements of a mask, of which there is one or more, in words on one line."""
    count = int(mask.sum())
    if count == mask.numel():
        return "every element"
    wrong: list[list[int]] = []
    """For each dimension, the indices at which any element is wrong."""
    rest = mask
    while rest.dim():  # reduce the last dimension in turn: the full mask is read only twice
        by_dimension = rest.flatten(0, -2).any(0) if rest.dim() > 1 else rest
        wrong.insert(0, by_dimension.nonzero().flatten().tolist())
        rest = rest.any(-1)
    words, full = [], []
    for indices, axis, size in zip(wrong, axes, mask.shape, strict=True):
        if len(indices) < size:
            part = _part(indices, axis)
            words.append(_set(indices, axis, size, bool(part)) + part)
        elif size > 1:
            full.append(axis.name)
    if full:
        words.append(f"every {listed(full)}")
    if count < math.prod(map(len, wrong)):
        words.append("not all of those")  # the caller appends the number of wrong elements
    return ", ".join(words)


def _set(wrong: Sequence[int], axis: Axis, size: int, named: bool) -> str:
    """Describe the wrong indices of a dimension by the first form that fits.

    If `named`, the name of a part follows, and the right indices need not be listed.
    """
    runs, count = list(_runs(wrong)), len(wrong)
    first, last = wrong[0], wrong[-1]
    if count == 1:
        return f"{axis.name} {first} of 0 to {size - 1}"
    if len(runs) == 1:
        return _range(first, last, axis, size, named)
    if size - count <= MOST_RIGHT and count > size - count:
        right = sorted(set(range(size)).difference(wrong))
        return f"every {axis.name} but {listed(right)} of 0 to {size - 1}"
    step = wrong[1] - first
    if 1 < step < 5 and count > 2 and all(b - a == step for a, b in pairwise(wrong)):
        end = "on" if last + step >= size else f"to {last} of 0 to {size - 1}"
        return f"every {ORDINALS[step - 1]} {axis.name} from {first} {end}"
    if count <= MOST_LISTED:
        return f"{axis.plural} {listed(wrong)} of 0 to {size - 1}"
    if len(runs) <= RUNS:
        spans = [f"{a}" if a == b else f"{a} to {b}" for a, b in runs]
        return f"{axis.plural} {listed(spans)} of 0 to {size - 1}"
    return f"{count} of {size} {axis.plural}"


def _range(first: int, last: int, axis: Axis, size: int, named: bool) -> str:
    right = [*range(first), *range(last + 1, size)]
    words = f"{axis.plural} {first} {'to' if last > first + 1 else 'and'} {last}"
    if len(right) <= MOST_RIGHT and not named:
        return f"{words} ({listed(right)} {'is' if len(right) == 1 else 'are'} right)"
    if last == size - 1 and size - first < first:  # probably the part after the last full tile
        return f"{axis.plural} from {first} on, the last {size - first} of {size}"
    return f"{words} of 0 to {size - 1}"


def _runs(wrong: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last index of each range of consecutive indices."""
    first = wrong[0]
    for one, other in pairwise(wrong):
        if other != one + 1:
            yield first, one
            first = other
    yield first, wrong[-1]


def _part(wrong: Sequence[int], axis: Axis) -> str:
    """Return the smallest named part that contains the indices, in brackets; "" if none does."""
    indices = set(wrong)
    containing = [name for name, part in axis.parts.items() if indices.issubset(part)]
    if not containing:
        return ""
    name = min(containing, key=lambda name: len(axis.parts[name]))
    if len(axis.parts[name]) == len(indices):
        return f" ({name})"
    return f" (within {name})" if len(indices) >= WITHIN else ""


def listed(words: Sequence[object]) -> str:
    """Return `a`, `a and b` or `a, b and c`."""
    *first_words, last = map(str, words)
    return f"{', '.join(first_words)} and {last}" if first_words else last
