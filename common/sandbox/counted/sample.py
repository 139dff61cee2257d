"""The programs and the loop iterations that stand for all of a launch.

Of many programs the first, the last and one drawn from each of equally long stretches between them
are run, and then those that tell where two neighbours begin to differ. Of a long loop the first
iteration, the last and two between are run. Each stands for a number of others, its weight: of
1,000 iterations 0, 333, 666 and 999 have the weights 1, 499, 499 and 1.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

from common.sandbox.interpreter.language import COUNTED, counted_range
from common.sandbox.interpreter.wrap import wrapped

PROGRAMS = 8
"""The programs that are run first; they stand for a launch whose programs are alike."""
MORE_PROGRAMS = 32
"""The most that are run to find where programs differ, and as many where they differ all over."""
OPEN = 0.002
"""The share of a launch's work that may be open between two of its programs that were run."""
ITERATIONS = 4
"""The iterations that stand for a longer loop."""


def drawn(total: int, count: int, dice: random.Random) -> list[tuple[int, float]]:
    """Return programs in order, each with the number of programs that it stands for.

    For example, 6 of 1,002: 0 and 1001 for themselves, and one of each 250 between for all of them.
    """
    if total <= count:
        return [(index, 1.0) for index in range(total)]
    inner = count - 2
    edges = [1 + step * (total - 2) // inner for step in range(inner + 1)]
    stretches = itertools.pairwise(edges)
    middle = [(dice.randrange(first, end), float(end - first)) for first, end in stretches]
    return [(0, 1.0), *middle, (total - 1, 1.0)]


def between(works: Mapping[int, float], total: int) -> int | None:
    """Return the program halfway between the two neighbours that leave the most work open.

    For example, of 1,000 programs 0 takes 5 and 999 takes 1: the 998 between may take 998 or 4,990,
    so that 499 is run next. None where no two neighbours leave more than OPEN of the launch's work.
    """
    order = sorted(works)
    if len(order) == total:
        return None
    gaps = [
        ((after - before - 1) * abs(works[after] - works[before]), (before + after) // 2)
        for before, after in itertools.pairwise(order)
    ]
    whole = sum(share * works[index] for index, share in nearest(order, total))
    most, middle = max(gaps, default=(0.0, 0))
    return middle if most > OPEN * whole else None


def nearest(order: Sequence[int], total: int) -> list[tuple[int, float]]:
    """Return three programs or more, each with the number that it is the nearest of.

    The first and the last stand for themselves, since the last one often has the rest of a tensor.
    """
    inner = [(a + b + 1) / 2 for a, b in itertools.pairwise(order[1:-1])]
    edges = itertools.pairwise([0.0, 1.0, *inner, total - 1.0, float(total)])
    return [(index, end - first) for index, (first, end) in zip(order, edges, strict=True)]


def iterations(total: int) -> list[tuple[int, float]]:
    """Return the iterations of a loop that are run, each with the number that it stands for."""
    if total <= ITERATIONS:
        return [(index, 1.0) for index in range(total)]
    others = (total - 2) / 2
    return [(0, 1.0), (total // 3, others), (2 * total // 3, others), (total - 1, 1.0)]


class Loops:
    """The loops of the running program, and the number of iterations that the present one is."""

    def __init__(self) -> None:
        """Begin outside of any loop."""
        self.weight = 1.0
        self.whole = False
        """Run every iteration, each for itself: the launch runs whole, and may store integers."""

    def some(self, values: Sequence[Any]) -> Iterator[Any]:
        """Yield the values of the iterations that are run."""
        outer = self.weight
        picked = [(n, 1.0) for n in range(len(values))] if self.whole else iterations(len(values))
        try:
            for index, times in picked:
                self.weight = outer * times
                yield values[index]
        finally:
            self.weight = outer

    @contextlib.contextmanager
    def sampled(self) -> Iterator[None]:
        """Put the sampling in the place of `range` in every kernel and device function called."""
        changed: list[dict[str, Any]] = []

        def patched(patch: Callable[[Any], Any], function: Any) -> Any:
            scope, names = patch(function), function.__globals__
            for name in ("range", "static_range"):
                known = getattr(tl, name)
                if not isinstance(known, _Some):
                    setattr(tl, name, _Some(self, known))
            if not isinstance(names.get(COUNTED), _Some):
                names[COUNTED] = _Some(self, counted_range)
                changed.append(names)
            return scope

        try:
            with wrapped(interpreter, "_patch_lang", patched):
                yield
        finally:
            for names in changed:
                names[COUNTED] = counted_range


class _Some:
    """`tl.range` of the interpreter, sampled."""

    def __init__(self, loops: Loops, whole: Callable[..., Sequence[Any]]) -> None:
        self._loops, self._whole = loops, whole

    def __call__(self, *bounds: Any, **options: Any) -> Iterator[Any]:
        return self._loops.some(self._whole(*bounds, **options))
