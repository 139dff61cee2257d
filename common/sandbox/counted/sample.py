"""Sample the programs and the loop iterations that stand for a whole launch.

Of many programs, the first, the last and one drawn from each of several equal ranges between them
run; then more run to locate where neighbours begin to differ. Of a long loop, the first iteration,
the last and one drawn from each half between them run. The weight of a program or an iteration is
the number that it stands for: of 1,000 iterations, 0, 333, 666 and 999 have the weights 1, 499, 499
and 1. What the sample leaves uncertain is a variance, estimated from the differences of neighbours.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

from common.sandbox.interpreter.language import COUNTED, counted_range
from common.sandbox.interpreter.wrap import wrapped

PROGRAMS = 8
"""The number of programs that run first; they stand for a launch whose programs are alike."""
MORE_PROGRAMS = 32
"""The most programs that run to locate differences, and the fewest drawn if all programs differ."""
MOST_PROGRAMS = 64
"""The most programs of a sample, even if the interval of their work is not narrow."""
NARROW = 0.02
"""The half-width of a narrow interval, as a share of the work."""
OPEN = 0.002
"""The share of a launch's work that may be uncertain between two neighbours of the sample."""
ITERATIONS = 4
"""The number of iterations that stand for a longer loop."""
WHOLE_LOOP = 64
"""The most iterations of a loop that runs whole because it only loads integers: a search
carries its place from one iteration to the next, and addresses depend on it."""


def drawn(total: int, count: int, dice: random.Random) -> list[tuple[int, float]]:
    """Return program indices in order, each with the number of programs that it stands for.

    For example, 6 of 1,002 programs: 0 and 1001 have weight 1, and one program from each of the
    four ranges of 250 between has weight 250.
    """
    if total <= count:
        return [(index, 1.0) for index in range(total)]
    inner = count - 2
    edges = [1 + step * (total - 2) // inner for step in range(inner + 1)]
    ranges = itertools.pairwise(edges)
    middle = [(dice.randrange(first, end), float(end - first)) for first, end in ranges]
    return [(0, 1.0), *middle, (total - 1, 1.0)]


def between(works: Mapping[int, float], total: int) -> int | None:
    """Return the program halfway between the two neighbours that leave the most work uncertain.

    For example, of 1,000 programs 0 takes 5 and 999 takes 1: the 998 between may take 998 or 4,990,
    so 499 runs next. Return None if no two neighbours leave more than OPEN of the launch's work
    uncertain.
    """
    order = sorted(works)
    if len(order) == total:
        return None
    gaps = [
        ((after - before - 1) * abs(works[after] - works[before]), (before + after) // 2)
        for before, after in itertools.pairwise(order)
    ]
    work = estimate(works, total)
    uncertain, middle = max(gaps, default=(0.0, 0))
    return middle if uncertain > OPEN * work else None


def estimate(works: Mapping[int, float], total: int) -> float:
    """Return the total work of all programs, from the work of some."""
    return sum(weight * works[index] for index, weight in nearest(sorted(works), total))


def variance(works: Mapping[int, float], total: int) -> float:
    """Return the variance of the total work that is estimated from these programs, by index.

    The programs between two neighbours are taken to vary as the two do. For example, of 1,000
    programs 0 takes 5 and 999 takes 1: the 998 between leave a variance of (998 x 4)^2 / 2.
    """
    return sum(
        ((after - before - 1) * (works[after] - works[before])) ** 2 / 2
        for before, after in itertools.pairwise(sorted(works))
    )


def half_width(variance: float, work: float) -> float:
    """Return the half-width of the work's 95 % interval, as a share of the work."""
    return 1.96 * math.sqrt(variance) / work if work else 0.0


def needed(works: Mapping[int, float], total: int) -> int:
    """Return how many drawn programs make the interval narrow, to judge from at least three.

    Return 0 if the work only rises or only falls, since bisection locates its steps: the programs
    of a persistent kernel have a tile less from some number on.
    """
    order = [works[at] for at in sorted(works)]
    if order in (sorted(order), sorted(order, reverse=True)):
        return 0
    width = half_width(variance(works, total), estimate(works, total))
    return min(MOST_PROGRAMS, math.ceil(len(works) * (width / NARROW) ** 2))


def nearest(order: Sequence[int], total: int) -> list[tuple[int, float]]:
    """Return the programs of `order`, at least three, each with the number of programs nearest it.

    The first and the last have weight 1, since the last often has the remainder of a tensor.
    """
    inner = [(a + b + 1) / 2 for a, b in itertools.pairwise(order[1:-1])]
    edges = itertools.pairwise([0.0, 1.0, *inner, total - 1.0, float(total)])
    return [(index, end - first) for index, (first, end) in zip(order, edges, strict=True)]


class Loops:
    """Samples the loops of the running program, and holds the weight of the current iteration."""

    def __init__(self, dice: random.Random) -> None:
        """Start outside any loop; `dice` draws the iterations."""
        self.weight, self._dice = 1.0, dice
        self.work: Callable[[], float] = lambda: 0.0
        """Returns the work of the running program so far, scaled to all iterations."""
        self.variance = 0.0
        """The variance of the running program's work, since of its loops a sample runs."""
        self.integers = 0
        """The number of loads of integers so far."""
        self.others = 0
        """The number of other accesses and of products so far."""
        self.run_all = False
        """Run every iteration with weight 1: all programs run, and may store integers."""

    def sample(self, values: Sequence[Any]) -> Iterator[Any]:
        """Yield the values of the iterations that run."""
        outer, loaded, others = self.weight, self.integers, self.others
        total, works = len(values), list[float]()
        waiting = deque(drawn(total, total if self.run_all else ITERATIONS, self._dice))
        try:
            while waiting:
                index, weight = waiting.popleft()
                self.weight, before = outer * weight, self.work()
                yield values[index]
                works.append((self.work() - before) / weight)
                searches = self.integers > loaded and self.others == others
                if not index and searches and total <= WHOLE_LOOP:
                    waiting = deque((later, 1.0) for later in range(1, total))
        finally:
            self.weight = outer
        if len(works) < total:  # two iterations stand for all between the first and the last
            self.variance += ((works[1] - works[2]) * (total - 2) / 2) ** 2

    @contextlib.contextmanager
    def sampled(self) -> Iterator[None]:
        """Replace `range` with a sampling one in every called kernel and device function."""
        patched_globals: list[dict[str, Any]] = []

        def patched(patch: Callable[[Any], Any], function: Any) -> Any:
            scope, names = patch(function), function.__globals__
            for name in ("range", "static_range"):
                original = getattr(tl, name)
                if not isinstance(original, _SampledRange):
                    setattr(tl, name, _SampledRange(self, original))
            if not isinstance(names.get(COUNTED), _SampledRange):
                names[COUNTED] = _SampledRange(self, counted_range)
                patched_globals.append(names)
            return scope

        try:
            with wrapped(interpreter, "_patch_lang", patched):
                yield
        finally:
            for names in patched_globals:
                names[COUNTED] = counted_range


class _SampledRange:
    """`tl.range` of the interpreter, sampled."""

    def __init__(self, loops: Loops, full_range: Callable[..., Sequence[Any]]) -> None:
        self._loops, self._full_range = loops, full_range

    def __call__(self, *bounds: Any, **options: Any) -> Iterator[Any]:
        return self._loops.sample(self._full_range(*bounds, **options))
