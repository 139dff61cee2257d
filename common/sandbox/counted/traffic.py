"""The memory traffic and the products of programs, and their sums over a launch's sample."""

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

from common.sandbox.counted.sample import Loops
from common.sandbox.interpreter.conflicts import READS, WRITES
from common.sandbox.interpreter.spans import Span, active, width_of
from common.wire import Reply

SECTOR = 32
"""The bytes that a GPU's caches and memory move at least."""


class WritesIntegers(Exception):
    """A kernel stores integers, by which later sizes may be decided: it has to run whole."""


Region = tuple[int, bool]
"""The place of a tensor among the launch's spans, and whether it is stored to."""


@dataclass
class Touched:
    """The distinct sectors of a region that a program touches."""

    sectors: set[int] = field(default_factory=set)
    """Those of the iterations that were run."""
    nbytes: float = 0
    """Of all iterations."""


@dataclass
class Program:
    """The work of one program; a number counts all iterations that a loop's sample stands for."""

    loaded: float = 0
    """Bytes that lanes load, those of the same address each."""
    stored: float = 0
    requested: float = 0
    """Bytes of the sectors that each load touches."""
    sent: float = 0
    """Bytes of the sectors that each store touches."""
    flops: Counter[str] = field(default_factory=Counter)
    """Of `tl.dot`, by the operands' dtype."""
    tile: tuple[int, int, int] = (0, 0, 0)
    """m, n and k of the largest product."""
    rounds: float = 0
    """The waits for memory, one after the other: loads up to the next store are one, and a scalar
    is one by itself, since an address or a branch follows from it."""
    touched: dict[Region, Touched] = field(default_factory=dict)


class Traffic:
    """Counts the program that runs now."""

    def __init__(self, loops: Loops) -> None:
        """Begin without a launch."""
        self._loops = loops
        self.begin_launch(())

    def begin_launch(self, spans: tuple[Span, ...]) -> None:
        """Count the programs of a launch with these spans from now on."""
        self._spans = spans
        self.begin_program()

    def begin_program(self) -> Program:
        """Count another program from now on, and return its work, which grows."""
        self._work, self._pending = Program(), False
        return self._work

    def loads(self, pointers: TensorHandle, mask: np.ndarray | None) -> None:
        """Count a load."""
        size, sectors = self._touch(pointers, mask, stores=False)
        self._work.loaded += size
        self._work.requested += sectors
        self._pending |= size > 0
        if pointers.data.size == 1:
            self._wait()

    def stores(self, pointers: TensorHandle, mask: np.ndarray | None) -> None:
        """Count a store.

        Raises:
            WritesIntegers: The launch has to run whole, and does not yet.
        """
        if not self._loops.whole and not pointers.get_element_ty().is_floating():
            raise WritesIntegers
        size, sectors = self._touch(pointers, mask, stores=True)
        self._work.stored += size
        self._work.sent += sectors
        self._wait()

    def multiplies(self, a: TensorHandle, b: TensorHandle, precision: Any) -> None:
        """Count a product of blocks."""
        (*batch, m, k), n = a.data.shape, b.data.shape[-1]
        kind = a.dtype.scalar.name
        if kind == "fp32":
            kind = "tf32" if precision != ir.INPUT_PRECISION.IEEE else "fp32"
        operations = 2 * int(np.prod(batch)) * m * n * k
        self._work.flops[kind] += operations * self._loops.weight
        if m * n * k > np.prod(self._work.tile):
            self._work.tile = (m, n, k)

    def end_program(self) -> None:
        """Count the loads that no store followed."""
        self._wait()

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
        region = self._place(int(addresses[0])), stores
        touched, times = self._work.touched.setdefault(region, Touched()), self._loops.weight
        before = len(touched.sectors)
        touched.sectors.update(sectors)
        touched.nbytes += SECTOR * (len(touched.sectors) - before) * times
        return times * addresses.size * width_of(pointers), times * SECTOR * len(sectors)

    def _place(self, address: int) -> int:
        return next((n for n, s in enumerate(self._spans) if s.first <= address < s.end), -1)

    def around(
        self, verb: str, pointers: TensorHandle, mask: np.ndarray | None, act: Callable[[], Any]
    ) -> Any:
        """Count an access, an update as a load and a store, and make it."""
        if verb != WRITES:
            self.loads(pointers, mask)
        if verb != READS:
            self.stores(pointers, mask)
        return act()

    def in_place_of_dot(
        self, dot: Any, builder: Any, a: Any, b: Any, d: Any, precision: Any, *rest: Any
    ) -> Any:
        """Count a product, and skip its arithmetic."""
        self.multiplies(a, b, precision)
        return d if d.dtype.scalar.is_floating() else dot(builder, a, b, d, precision, *rest)


# --- sums over a sample ---------------------------------------------------------------------------

Sample = list[tuple[float, Program]]
"""Programs that were run, each with the number that it stands for."""
INTENSITY = 256
"""The FLOPs that weigh as much as a byte where the work of two programs is compared."""


def work_of(program: Program) -> float:
    """Return a program's work as one number, in bytes."""
    return program.requested + program.sent + sum(program.flops.values()) / INTENSITY


def spread(sample: Sample) -> float:
    """Return the standard deviation of the programs' work over its mean, first and last apart."""
    works = [work_of(program) for _, program in sample[1:-1]]
    return statistics.pstdev(works) / statistics.fmean(works) if any(works) else 0.0


def total(sample: Sample, spans: Sequence[Span]) -> Reply:
    """Return the work of all programs."""
    programs = sum(weight for weight, _ in sample)
    flops: Counter[str] = Counter()
    for weight, program in sample:
        for kind, value in program.flops.items():
            flops[kind] += round(weight * value)
    heaviest = max(work_of(program) for _, program in sample)
    mean = sum(weight * work_of(program) for weight, program in sample) / programs
    return {
        "sampled": len(sample),
        "spread": round(spread(sample), 4),
        **{name: _sum(sample, name) for name in ("loaded", "stored", "requested", "sent")},
        "fetched": round(sum(w * _touched(program, stores=False) for w, program in sample)),
        "read": _distinct(sample, spans, stores=False),
        "written": _distinct(sample, spans, stores=True),
        "flops": dict(sorted(flops.items())),
        "tile": max((program.tile for _, program in sample), key=math.prod),
        "rounds": round(sum(w * program.rounds for w, program in sample) / programs, 2),
        "longest": round(heaviest / mean, 3) if mean else 1.0,
        "longest_rounds": round(max(program.rounds for _, program in sample), 2),
    }


def _sum(sample: Sample, name: str) -> int:
    amount: float = sum(weight * getattr(program, name) for weight, program in sample)
    return round(amount)


def _touched(program: Program, stores: bool) -> float:
    return sum(each.nbytes for (_, stored), each in program.touched.items() if stored == stores)


def _distinct(sample: Sample, spans: Sequence[Span], stores: bool) -> int:
    """Return the bytes of the distinct sectors that all programs touch together."""
    regions = {region for _, program in sample for region in program.touched}
    found: dict[tuple[int, int], int] = {}
    for place, stored in regions:
        if stored == stores:
            span = spans[place] if place >= 0 else Span("", 0, 1 << 62)
            size = span.end - span.first
            at = span.first, span.end  # two arguments may be one tensor
            union = round(_union(sample, (place, stored), size))
            found[at] = min(size, found.get(at, 0) + union)
    return sum(found.values())


def _union(sample: Sample, region: Region, size: int) -> float:
    """Return the bytes of a region that all programs touch, by the overlap of those that ran.

    Programs that have no sector in common touch the sum of what each does. Where k programs of s
    sectors each have U different ones, they are taken for draws from the N sectors for which that
    is the expected number: U = N (1 - (1 - s / N)^k). From half of the tensor's `size` on, all of
    the tensor is taken to be touched, since a sample of tiles tells no better.
    """
    parts = [(w, p.touched[region]) for w, p in sample if region in p.touched]
    apart = sum(weight * part.nbytes for weight, part in parts)
    sizes = [len(part.sectors) for _, part in parts]
    union = len(set().union(*(part.sectors for _, part in parts)))
    if union == sum(sizes):
        return apart
    iterations = sum(part.nbytes for _, part in parts) / (SECTOR * sum(sizes))
    everyone = len(parts) == sum(weight for weight, _ in parts)
    sectors = union if everyone else population(union, statistics.fmean(sizes), len(sizes))
    together = SECTOR * sectors * iterations
    return min(apart, size if 2 * together > size and not everyone else together)


def population(union: int, size: float, draws: int) -> float:
    """Return N of which `draws` draws of `size` each have `union` different ones, as expected."""
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
