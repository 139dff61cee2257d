"""Count the memory traffic and the matrix products of a launch by a sample of its programs.

Of many programs, the first, the last and one drawn from each of several equal ranges between them
run; then more run to locate where neighbours begin to differ. Of a long loop, the first iteration,
the last and one drawn from each half between them run. The weight of a program or of an iteration
is the number that it stands for: of 1,000 iterations, 0, 333, 666 and 999 have the weights 1, 499,
499 and 1.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from triton._C.libtriton import ir
from triton.runtime.interpreter import TensorHandle

from common.sandbox.interpreter.explanation import READS, WRITES
from common.sandbox.interpreter.spans import Span, selected
from common.wire import Reply

SECTOR = 32
"""The smallest transfer between a GPU's caches and its memory, in bytes."""
OPEN = 0.01
"""The share of a launch's work that may be uncertain between two neighbours of the sample."""
ITERATIONS = 4
"""The number of iterations that stand for a longer loop."""
WHOLE_LOOP = 64
"""The most iterations of a loop that runs whole because it only loads integers: a search
carries its place from one iteration to the next, and addresses depend on it."""
INTENSITY = 256
"""The FLOPs that count as one byte when the work of two programs is compared."""
Region = tuple[tuple[int, int], bool]
"""The first and the end address of a tensor, and whether the access is a store."""


@functools.cache
def drawn(total: int, count: int) -> list[tuple[int, float]]:
    """Return indices in order, each with the number of programs or iterations it stands for.

    For example, 6 of 1,002: 0 and 1001 have weight 1, and one from each of the four ranges of 250
    between them has weight 250. The draw is the same each time.
    """
    dice = random.Random(total)
    if total <= count:
        return [(index, 1.0) for index in range(total)]
    inner = count - 2
    edges = [1 + step * (total - 2) // inner for step in range(inner + 1)]
    ranges = itertools.pairwise(edges)
    middle = [(dice.randrange(first, end), float(end - first)) for first, end in ranges]
    return [(0, 1.0), *middle, (total - 1, 1.0)]


def nearest(order: Sequence[int], total: int) -> list[tuple[int, float]]:
    """Return programs, at least three, each with the number of programs nearest to it.

    The first and the last have weight 1, since the last often has the remainder of a tensor.
    """
    inner = [(a + b + 1) / 2 for a, b in itertools.pairwise(order[1:-1])]
    edges = itertools.pairwise([0.0, 1.0, *inner, total - 1.0, float(total)])
    return [(index, end - first) for index, (first, end) in zip(order, edges, strict=True)]


class WritesIntegers(Exception):
    """A kernel stores integers, which may decide later sizes: all its programs have to run."""


@dataclass
class Program:
    """The work of one program; amounts are scaled to all iterations of its sampled loops."""

    sectors: dict[Region, set[int]] = field(default_factory=lambda: defaultdict(set))
    """The sectors that the iterations that ran touch."""
    nbytes: Counter[Region] = field(default_factory=Counter)
    """Bytes of the sectors; a sector that the program touches again counts once."""
    flops: Counter[str] = field(default_factory=Counter)
    """FLOPs of `tl.dot`, by the operands' dtype."""
    rounds: float = 0
    """The number of sequential waits for memory. All loads before a store share one wait; a scalar
    load is a wait of its own, since an address or a branch depends on it."""

    @property
    def work(self) -> float:
        """The bytes and the FLOPs as one number, in bytes."""
        return sum(self.nbytes.values()) + sum(self.flops.values()) / INTENSITY


def unsettled(sample: Mapping[int, Program], total: int) -> int | None:
    """Return the program halfway between the two neighbours that leave the most work uncertain.

    For example, of 1,000 programs 0 takes 5 and 999 takes 1: the 998 between may take 998 or 4,990,
    so 499 runs next. Return None if no two neighbours leave more than OPEN of the launch's work
    uncertain.
    """
    order = sorted(sample)
    work = sum(weight * sample[index].work for index, weight in nearest(order, total))
    uncertain, middle = max(
        ((after - before - 1) * abs(sample[after].work - sample[before].work),
         (before + after) // 2)
        for before, after in itertools.pairwise(order)
    )  # fmt: skip
    return middle if uncertain > OPEN * work else None


class Traffic:
    """Counts the work of the running program, and samples its loops."""

    def __init__(self, integers: bool = False) -> None:
        """Start without a launch; `integers` allows a sample of programs to store integers."""
        self.whole = False
        """Every iteration runs, and kernels may store integers."""
        self._integers = integers
        self._weight = 1.0
        self._others = 0
        """The number of accesses and products so far, less the loads of integers."""
        self.begin_launch(())

    def begin_launch(self, spans: tuple[Span, ...]) -> None:
        """Start counting the programs of a launch with these spans."""
        self._spans = spans
        self.extents: dict[Region, tuple[int, int]] = {}
        """The first and the end address that any access of a region touches."""
        self.begin_program()

    def begin_program(self) -> Program:
        """Start counting a program; return its work, to which each later access adds."""
        self._work, self._waits = Program(), False
        return self._work

    def end_program(self) -> None:
        """Count the wait for loads that no store followed."""
        self._work.rounds += self._waits * self._weight
        self._waits = False

    def access(
        self, verb: str, pointers: TensorHandle, mask: np.ndarray | None, act: Callable[[], Any]
    ) -> Any:
        """Count an access and make it; an atomic update counts as a load and a store.

        Raises:
            WritesIntegers: All programs of the launch have to run, but only a sample does.
        """
        floating = pointers.get_element_ty().is_floating()
        if verb != WRITES:
            self._waits |= self._touch(pointers, mask, stores=False)
            self._others += floating
            if pointers.data.size == 1:
                self.end_program()
        if verb != READS:
            if not (self.whole or self._integers or floating):
                raise WritesIntegers
            self._touch(pointers, mask, stores=True)
            self._others += 1
            self.end_program()
        return act()

    def _touch(self, pointers: TensorHandle, mask: np.ndarray | None, stores: bool) -> bool:
        """Add the distinct sectors of an access; return whether a lane makes it."""
        addresses = selected(pointers.data, mask).ravel()
        if not addresses.size:
            return False
        sectors = np.unique(addresses // np.uint64(SECTOR)).tolist()
        first = int(addresses[0])
        spans = ((each.first, each.end) for each in self._spans if each.first <= first < each.end)
        region = next(spans, (0, 1 << 62)), stores
        touched = self._work.sectors[region]
        before = len(touched)
        touched.update(sectors)
        self._work.nbytes[region] += SECTOR * (len(touched) - before) * self._weight  # type: ignore[assignment]
        low, high = self.extents.get(region, (1 << 62, 0))
        ends = min(low, SECTOR * sectors[0]), max(high, SECTOR * (sectors[-1] + 1))
        self.extents[region] = ends
        return True

    def in_place_of_dot(
        self, dot: Any, builder: Any, a: Any, b: Any, d: Any, precision: Any, *rest: Any
    ) -> Any:
        """Count a product of blocks; compute it only if its result is an integer."""
        (*batch, m, k), n = a.data.shape, b.data.shape[-1]
        dtype = a.dtype.scalar.name
        if dtype == "fp32":
            dtype = "tf32" if precision != ir.INPUT_PRECISION.IEEE else "fp32"
        self._work.flops[dtype] += round(2 * int(np.prod(batch)) * m * n * k * self._weight)
        self._others += 1
        return d if d.dtype.scalar.is_floating() else dot(builder, a, b, d, precision, *rest)

    # --- loops ------------------------------------------------------------------------------------

    def iterations(self, values: Sequence[Any]) -> Iterator[Any]:
        """Yield the values of the iterations that run."""
        outer, others, total = self._weight, self._others, len(values)
        waiting = drawn(total, total if self.whole else ITERATIONS)
        try:
            while waiting:
                (index, weight), *waiting = waiting
                self._weight = outer * weight
                yield values[index]
                if index == 0 and self._others == others and total <= WHOLE_LOOP:
                    waiting = [(later, 1.0) for later in range(1, total)]
        finally:
            self._weight = outer


def total(
    sample: Sequence[tuple[float, Program]], extents: Mapping[Region, tuple[int, int]]
) -> Reply:
    """Return the work of all programs of a launch.

    A sector that several programs touch counts once: a launch touches at most the memory between
    the first and the last address of its sample, or more if a single program does, since pointers
    may move with the iterations of a loop that do not run.

    Args:
        sample: The programs that ran, each with the number of programs that it stands for.
        extents: The first and the end address of each region.
    """
    programs = sum(weight for weight, _ in sample)
    flops: Counter[str] = Counter()
    nbytes: Counter[Region] = Counter()
    most: Counter[Region] = Counter()
    for weight, program in sample:
        most |= program.nbytes
        for dtype, number in program.flops.items():
            flops[dtype] += round(weight * number)
        for region, number in program.nbytes.items():
            nbytes[region] += weight * number  # type: ignore[assignment]
    distinct = {
        region: min(number, max(extents[region][1] - extents[region][0], most[region]))
        for region, number in nbytes.items()
    }
    return {
        "sampled": len(sample),
        "fetched": round(sum(number for (_, stored), number in nbytes.items() if not stored)),
        "read": round(sum(number for (_, stored), number in distinct.items() if not stored)),
        "written": round(sum(number for (_, stored), number in distinct.items() if stored)),
        "flops": dict(sorted(flops.items())),
        "rounds": round(sum(weight * program.rounds for weight, program in sample) / programs, 2),
    }
