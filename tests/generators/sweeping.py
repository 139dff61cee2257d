"""How near the house's rope comes to a copy on random shapes; on a GPU, within a minute.

`python -m tests.generators.sweeping` prints a table of all shapes, the worst first. It ends with 1
where one of those that are held takes too long; `slow` says which.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles

import torch

from common import ops
from common.ops._rope_cases import RopeCase
from common.paths import ROOT

HOUSE = str(ROOT / "contributors" / "house")
KINDS, SHAPES = 20, 200
"""The number of kinds, each of which is compiled a few times, and of shapes in all."""
WORKERS = min(len(os.sched_getaffinity(0)), KINDS // 2)
"""The processes that compile; each takes every WORKERS-th kind."""
LEAST, LONG = 0.85, 20
"""The least share of a copy's speed, where the copy takes longer than so many microseconds."""
SAMPLES = 15
FLUSH = 256 << 20
"""Bytes that are written before each sample, more than a GPU's L2 cache holds."""


@dataclass(frozen=True)
class Swept:
    """A case with the medians of its time and of a copy of its least bytes, in microseconds."""

    name: str
    taken: float
    copied: float

    @property
    def share(self) -> float:
        """The share of the copy's speed."""
        return self.copied / self.taken


def cases(seed: int = 0) -> Iterator[RopeCase]:
    """Draw shapes of 16 MB to 256 MB: ten of each kind, which has its width, options and dtype."""
    dice = random.Random(seed)
    for kind in range(KINDS):
        width = dice.choice((64, 80, 96, 128, 128, 192, 256))
        fields = {
            "h": dice.choice((1, 2, 8, 10, 16, 32, 40, 64)),
            "d": width,
            "d2": dice.choice((width, width, width // 2)),
            "dtype": dice.choice(("bfloat16", "bfloat16", "float16", "float32")),
            "interleaved": dice.random() < 0.25,
            "tensor_format": ("sbhd", "bshd", "thd")[kind % 3],
        }
        for _ in range(SHAPES // KINDS):
            yield RopeCase(angles="model", **fields, **_rows(dice, fields))


def _rows(dice: random.Random, fields: dict) -> dict:
    """Draw the number of tokens, and their sequences."""
    size = 2 ** dice.uniform(24, 28) / getattr(torch, fields["dtype"]).itemsize
    tokens = max(int(size / fields["h"] / fields["d"]), 64)
    if fields["tensor_format"] != "thd":
        b = dice.choice((1, 2, 4, 16))
        return {"b": b, "s": tokens // b}
    ends = sorted(dice.randint(0, tokens) for _ in range(dice.choice((1, 7, 63))))
    return {"lengths": tuple(b - a for a, b in pairwise((0, *ends, tokens)))}


def sweep() -> list[Swept]:
    """Time all cases on the current GPU, the worst share first."""
    with ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_compile, range(WORKERS)))
    rope = _house()
    flush = torch.empty(FLUSH, dtype=torch.uint8, device="cuda")
    return sorted((_timed(rope, case, flush) for case in cases()), key=lambda swept: swept.share)


def _house():
    sys.path.insert(0, HOUSE)
    from rope import rope

    return rope


def _compile(worker: int) -> None:
    """Run this worker's share of the kinds, so that their kernels are in Triton's cache."""
    rope = _house()
    for index, case in enumerate(cases()):
        if index // (SHAPES // KINDS) % WORKERS == worker:
            t, arguments = _drawn(case)
            rope(t, **arguments)


def _drawn(case: RopeCase) -> tuple[torch.Tensor, dict]:
    arguments = ops.load("rope").draw(case, torch.Generator("cuda").manual_seed(0))
    return arguments.pop("t"), arguments


def _timed(rope, case: RopeCase, flush: torch.Tensor) -> Swept:
    t, arguments = _drawn(case)
    least = ops.load("rope").work(case, "forward").bytes  # t twice, and the angles
    source, copy = torch.empty(2, least // 2, dtype=torch.uint8, device="cuda")
    runs = (lambda: rope(t, **arguments), lambda: copy.copy_(source))
    for run in runs:
        for _ in range(3):
            run()
    rounds = [[_sample(run, flush) for run in runs] for _ in range(SAMPLES)]
    taken, copied = (median(samples) for samples in zip(*rounds, strict=True))
    return Swept(case.name, taken, copied)


def _sample(run, flush: torch.Tensor) -> float:
    """Return the microseconds of a run that is queued while the GPU is at work."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    flush.zero_()
    torch.cuda._sleep(400_000)  # clock cycles, some 200 us
    start.record()
    run()
    end.record()
    end.synchronize()
    return 1000 * start.elapsed_time(end)


def is_held(case: RopeCase) -> bool:
    """Return whether its programs have one token each; docs/few-heads.md says what others reach."""
    return case.h >= 8 and case.tensor_format != "thd"


def long(swept: list[Swept]) -> list[Swept]:
    """Return those whose copy takes longer than LONG."""
    return [each for each in swept if each.copied > LONG]


def slow(swept: list[Swept]) -> list[Swept]:
    """Return those of the held shapes that take too long beside their copy."""
    held = {case.name for case in cases() if is_held(case)}
    return [each for each in long(swept) if each.name in held and each.share < LEAST]


def distribution(swept: list[Swept]) -> str:
    """Return the quantiles of the shares in a line."""
    shares = sorted(each.share for each in swept)
    cuts = quantiles(shares, n=20) if len(shares) > 1 else shares * 19
    points = {"5 %": cuts[0], "25 %": cuts[4], "median": cuts[9], "75 %": cuts[14]}
    named = ", ".join(f"{name} {value:.3f}" for name, value in points.items())
    return f"{len(shares)} shapes: worst {shares[0]:.3f}, {named}, best {shares[-1]:.3f}"


def table(swept: list[Swept]) -> str:
    """Return a line a shape: share, time and the copy's time in microseconds."""
    lines = [
        f"{each.share:6.3f} {each.taken:9.1f} {each.copied:9.1f}  {each.name}" for each in swept
    ]
    return "\n".join([" share     house      copy  case", *lines])


if __name__ == "__main__":
    every = sweep()
    print(table(every))
    print(f"above {LONG} us:", distribution(long(every)))
    print("all:", distribution(every))
    if found := slow(every):
        raise SystemExit(f"below {LEAST} of a copy's speed:\n{table(found)}")
