"""Count programs' memory traffic and matrix products, and sum them over a launch's sample."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from triton._C.libtriton import ir
from triton.runtime.interpreter import TensorHandle

from common.sandbox.counted.sample import NARROW, Loops, half_width
from common.sandbox.interpreter.conflicts import READS, WRITES
from common.sandbox.interpreter.spans import Span, active, width_of
from common.sandbox.interpreter.together import first_of
from common.wire import Reply

SECTOR = 32
"""The smallest transfer between a GPU's caches and its memory, in bytes."""


class WritesIntegers(Exception):
    """A kernel stores integers, which may decide later sizes: all its programs have to run."""


Region = tuple[int, bool]
"""The index of a tensor's span in the launch's spans, and whether the access is a store."""


@dataclass
class Touched:
    """The distinct sectors of a region that a program touches."""

    sectors: set[int] = field(default_factory=set)
    """The sectors of the iterations that ran."""
    nbytes: float = 0
    """Bytes of the sectors, scaled to all iterations."""


@dataclass
class Program:
    """The work of one program; counts are scaled to all iterations of its sampled loops."""

    loaded: float = 0
    """Bytes that all lanes load; lanes that load the same address count separately."""
    stored: float = 0
    requested: float = 0
    """Bytes of the sectors that each load touches."""
    sent: float = 0
    """Bytes of the sectors that each store touches."""
    flops: Counter[str] = field(default_factory=Counter)
    """FLOPs of `tl.dot`, by the operands' dtype."""
    tile: tuple[int, int, int] = (0, 0, 0)
    """m, n and k of the largest product."""
    rounds: float = 0
    """The number of sequential waits for memory. All loads before a store share one wait; a scalar
    load is a wait of its own, since an address or a branch depends on it."""
    touched: dict[Region, Touched] = field(default_factory=dict)
    variance: float = 0
    """The variance of the work that the sampled loops leave; see `sample.variance`."""


class Traffic:
    """Counts the work of the running program."""

    def __init__(self, loops: Loops, integers: bool = False) -> None:
        """Start without a launch; `integers` allows a sample of programs to store integers."""
        self._loops, self._integers = loops, integers
        loops.work = lambda: work_of(self._work)
        self.begin_launch(())

    def begin_launch(self, spans: tuple[Span, ...]) -> None:
        """Start counting the programs of a launch with these spans."""
        self._spans = spans
        self.begin_program()

    def begin_program(self) -> Program:
        """Start counting a program; return its work, to which each later access adds."""
        self._work, self._pending, self._loops.variance = Program(), False, 0.0
        return self._work

    def loads(self, pointers: TensorHandle, mask: np.ndarray | None) -> None:
        """Count a load."""
        size, sectors = self._touch(pointers, mask, stores=False)
        self._work.loaded += size
        self._work.requested += sectors
        self._pending |= size > 0
        floating = pointers.get_element_ty().is_floating()
        self._loops.integers += not floating
        self._loops.others += floating
        if pointers.data.size == 1:
            self._wait()

    def stores(self, pointers: TensorHandle, mask: np.ndarray | None) -> None:
        """Count a store.

        Raises:
            WritesIntegers: All programs of the launch have to run, but only a sample does.
        """
        whole = self._integers or self._loops.run_all
        if not whole and not pointers.get_element_ty().is_floating():
            raise WritesIntegers
        self._loops.others += 1
        size, sectors = self._touch(pointers, mask, stores=True)
        self._work.stored += size
        self._work.sent += sectors
        self._wait()

    def multiplies(self, a: TensorHandle, b: TensorHandle, precision: Any) -> None:
        """Count a matrix product of blocks."""
        (*batch, m, k), n = first_of(a).data.shape, first_of(b).data.shape[-1]
        dtype = a.dtype.scalar.name
        if dtype == "fp32":
            dtype = "tf32" if precision != ir.INPUT_PRECISION.IEEE else "fp32"
        operations = 2 * int(np.prod(batch)) * m * n * k
        self._work.flops[dtype] += round(operations * self._loops.weight)
        self._loops.others += 1
        if m * n * k > np.prod(self._work.tile):
            self._work.tile = (m, n, k)

    def end_program(self) -> None:
        """Count the wait for loads that no store followed."""
        self._wait()
        self._work.variance = self._loops.variance

    def _wait(self) -> None:
        self._work.rounds += self._pending * self._loops.weight
        self._pending = False

    def _touch(
        self, pointers: TensorHandle, mask: np.ndarray | None, stores: bool
    ) -> tuple[float, float]:
        """Count the distinct sectors of an access; return the bytes of its lanes and sectors."""
        addresses = active(pointers, mask).ravel()
        if not addresses.size:
            return 0.0, 0.0
        sectors = np.unique(addresses // np.uint64(SECTOR)).tolist()
        region = self._span_index(int(addresses[0])), stores
        touched, weight = self._work.touched.setdefault(region, Touched()), self._loops.weight
        before = len(touched.sectors)
        touched.sectors.update(sectors)
        touched.nbytes += SECTOR * (len(touched.sectors) - before) * weight
        return weight * addresses.size * width_of(pointers), weight * SECTOR * len(sectors)

    def _span_index(self, address: int) -> int:
        spans = enumerate(self._spans)
        return next((index for index, span in spans if span.first <= address < span.end), -1)

    def around(
        self, verb: str, pointers: TensorHandle, mask: np.ndarray | None, act: Callable[[], Any]
    ) -> Any:
        """Count an access and make it; an atomic update counts as a load and a store."""
        if verb != WRITES:
            self.loads(pointers, mask)
        if verb != READS:
            self.stores(pointers, mask)
        return act()

    def in_place_of_dot(
        self, dot: Any, builder: Any, a: Any, b: Any, d: Any, precision: Any, *rest: Any
    ) -> Any:
        """Count a product; compute it only if its result is an integer."""
        self.multiplies(a, b, precision)
        return d if d.dtype.scalar.is_floating() else dot(builder, a, b, d, precision, *rest)


# --- sums over a sample ---------------------------------------------------------------------------

Sample = list[tuple[float, Program]]
"""The programs that ran, each with the number of programs that it stands for."""
INTENSITY = 256
"""The FLOPs that count as one byte when the work of two programs is compared."""


def work_of(program: Program) -> float:
    """Return a program's work as one number, in bytes."""
    return program.requested + program.sent + sum(program.flops.values()) / INTENSITY


def total(sample: Sample, variance: float, spans: Sequence[Span]) -> Reply:
    """Return the work of all programs of a launch; `variance` is what the sample leaves."""
    programs = sum(weight for weight, _ in sample)
    flops: Counter[str] = Counter()
    for weight, program in sample:
        for dtype, value in program.flops.items():
            flops[dtype] += round(weight * value)
    heaviest = max(work_of(program) for _, program in sample)
    work = sum(weight * work_of(program) for weight, program in sample)
    variance += sum(weight**2 * program.variance for weight, program in sample)
    fetched = sum(weight * _touched(program, stores=False) for weight, program in sample)
    return {
        "sampled": len(sample),
        "uncertain": round(width, 4) if (width := half_width(variance, work)) > NARROW else 0.0,
        **{name: _sum(sample, name) for name in ("loaded", "stored", "requested", "sent")},
        "fetched": round(fetched),
        "read": _distinct(sample, spans, stores=False),
        "written": _distinct(sample, spans, stores=True),
        "flops": dict(sorted(flops.items())),
        "tile": max((program.tile for _, program in sample), key=math.prod),
        "rounds": round(sum(weight * program.rounds for weight, program in sample) / programs, 2),
        "longest": round(heaviest / work * programs, 3) if work else 1.0,
        "longest_rounds": round(max(program.rounds for _, program in sample), 2),
    }


def _sum(sample: Sample, name: str) -> int:
    amount: float = sum(weight * getattr(program, name) for weight, program in sample)
    return round(amount)


def _touched(program: Program, stores: bool) -> float:
    regions = program.touched.items()
    return sum(touched.nbytes for (_, stored), touched in regions if stored == stores)


def _distinct(sample: Sample, spans: Sequence[Span], stores: bool) -> int:
    """Return the bytes of the distinct sectors that the programs of a launch touch."""
    regions = {region for _, program in sample for region in program.touched}
    nbytes: dict[tuple[int, int], int] = {}
    for index, stored in regions:
        if stored == stores:
            span = spans[index] if index >= 0 else Span("", 0, 1 << 62)
            size = span.end - span.first
            memory = span.first, span.end  # two arguments may be the same tensor
            union = round(_union(sample, (index, stored), size))
            nbytes[memory] = min(size, nbytes.get(memory, 0) + union)
    return sum(nbytes.values())


def _union(sample: Sample, region: Region, size: int) -> float:
    """Estimate the bytes of a region that any program of the launch touches, from the sample.

    If no two programs of the sample share a sector, their bytes are added up. Otherwise, k programs
    of s sectors with U distinct sectors count as k random draws from N sectors, where N solves
    U = N (1 - (1 - s / N)^k). If the estimate exceeds half of the tensor's `size`, the whole tensor
    counts as touched, since a sample of tiles allows no better estimate.
    """
    parts = [
        (weight, program.touched[region]) for weight, program in sample if region in program.touched
    ]
    disjoint = sum(weight * part.nbytes for weight, part in parts)
    sizes = [len(part.sectors) for _, part in parts]
    union = len(set().union(*(part.sectors for _, part in parts)))
    if union == sum(sizes):
        return disjoint
    iterations = sum(part.nbytes for _, part in parts) / (SECTOR * sum(sizes))
    all_ran = len(parts) == sum(weight for weight, _ in parts)
    sectors = union if all_ran else population(union, statistics.fmean(sizes), len(sizes))
    overlapping = SECTOR * sectors * iterations
    return min(disjoint, size if 2 * overlapping > size and not all_ran else overlapping)


def population(union: int, size: float, draws: int) -> float:
    """Return N such that `draws` draws of `size` from N have `union` distinct items on average."""
    low = high = float(max(union, size))
    while high * (1 - (1 - size / high) ** draws) < union and high < 1 << 50:
        high *= 2
    while high - low > low / 1000:
        middle = (low + high) / 2
        if middle * (1 - (1 - size / middle) ** draws) < union:
            low = middle
        else:
            high = middle
    return low
