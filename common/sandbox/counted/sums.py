"""The work of a launch, from that of the programs that were run."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence

from common.sandbox.counted.traffic import SECTOR, Program, Region
from common.sandbox.interpreter.spans import Span
from common.wire import Reply

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
