"""GPU time and host time of one call, beside eager and the limits; runs in a solution's process.

GPU time: CUDA events around work that is already queued (the GPU spins until the host has queued
all of it, so that launching is not counted), the L2 cache flushed, inputs in rotation, the
contestants taken in turn in shuffled order. Host time: until the call returns, the GPU idle before
it, autograd included; where it ranks the case each sample is the mean of a burst of calls, as a
training loop makes them. All samples are microseconds.
"""

from __future__ import annotations

import gc
import itertools
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

Run = Callable[[], object]
Samples = dict[str, list[float]]
Product = Sequence[int]

ROUNDS = range(8, 101)
"""At least and at most so many samples of each contestant."""
LONGEST = 10.0
WARM_UP_CALLS = 3
CYCLES_PER_MICROSECOND = 2000
LONGEST_SPIN = 5000.0
QUEUING = 300.0
"""Microseconds in which the host has queued a copy or nine products."""


def measure(
    ours: list[Any],
    eager: Any,
    *,
    backward: bool,
    copy_bytes: int,
    products: list[Product],
    dtype: str,
    seconds: float,
    burst: int,
) -> dict[str, Samples]:
    """`{"gpu": {"solution", "eager", "copy", "dense"}, "host": {"solution", "eager"}}`, samples of
    each; `dense` where the case has products.

    `ours` are several inputs of one shape, taken in rotation; `copy_bytes` is what the copy moves,
    reads and writes together; `products` are m, k and n of the dense products; `seconds` is how
    long each of the two clocks may run; `burst` is how many calls make one sample of host time.
    """
    rotation = itertools.cycle([_run(call, backward) for call in ours])
    contestants: dict[str, Run] = {
        "solution": lambda: next(rotation)(),
        "eager": _run(eager, backward),
    }
    for run in contestants.values():
        _warm_up(run)
    host = _sample(contestants, lambda name, run: _host_time(run, burst), seconds)
    limits = {"copy": _copy(copy_bytes)}
    if products:
        limits["dense"] = _dense(products, getattr(torch, dtype))
    for run in limits.values():
        _warm_up(run)
    contestants |= limits
    spins = {name: 2 * max(samples) for name, samples in host.items()}
    spins |= dict.fromkeys(limits, QUEUING)
    flush = torch.empty(2 * _l2_bytes(), dtype=torch.uint8, device="cuda")

    def gpu_time(name: str, run: Run) -> float:
        return _gpu_time(run, flush, min(spins[name], LONGEST_SPIN))

    return {"gpu": _sample(contestants, gpu_time, seconds), "host": host}


def measure_alone(ours: list[Any], *, backward: bool, seconds: float) -> list[float]:
    """GPU time of the solution by itself, to be held against itself in another configuration."""
    rotation = itertools.cycle([_run(call, backward) for call in ours])
    contestants: dict[str, Run] = {"solution": lambda: next(rotation)()}
    _warm_up(contestants["solution"])
    host = [_host_time(contestants["solution"], 1) for _ in range(WARM_UP_CALLS)]
    spin = min(2 * max(host), LONGEST_SPIN)
    flush = torch.empty(2 * _l2_bytes(), dtype=torch.uint8, device="cuda")

    def gpu_time(_: str, run: Run) -> float:
        return _gpu_time(run, flush, spin)

    return _sample(contestants, gpu_time, seconds)["solution"]


def _copy(nbytes: int) -> Run:
    """So many bytes read and written: what binds where memory does."""
    source, target = (
        torch.empty(max(nbytes // 2, 1), dtype=torch.uint8, device="cuda") for _ in range(2)
    )
    source.random_()
    return lambda: target.copy_(source)


def _dense(products: list[Product], dtype: torch.dtype) -> Run:
    """One product after the other, as the vendor's library runs them: what binds where arithmetic
    does. Random values, since zeros would draw less power and run faster."""

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=dtype, device="cuda")

    factors = [(random(m, k), random(n, k)) for m, k, n in products]
    return lambda: [torch.nn.functional.linear(*pair) for pair in factors]


def _run(call: Any, backward: bool) -> Run:
    forward, wanted, upstream = call
    if not backward:
        return forward  # type: ignore[no-any-return]
    return lambda: torch.autograd.grad(forward(), wanted, upstream)


def _warm_up(run: Run) -> None:
    for _ in range(WARM_UP_CALLS):
        run()
    torch.cuda.synchronize()


def _sample(
    contestants: dict[str, Run], clock: Callable[[str, Run], float], seconds: float
) -> Samples:
    """In turn, in an order that is shuffled each round, until the time or the rounds are up."""
    samples: Samples = {name: [] for name in contestants}
    gc.collect()
    start = time.monotonic()
    for done in range(ROUNDS.stop - 1):
        elapsed = time.monotonic() - start
        if elapsed > LONGEST or (elapsed > seconds and done >= ROUNDS.start):
            break
        for name in random.sample(list(contestants), len(contestants)):
            samples[name].append(round(clock(name, contestants[name]), 2))
    return samples


def _host_time(run: Run, burst: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    for _ in range(burst):
        run()
    return (time.perf_counter_ns() - start) / 1e3 / burst


def _gpu_time(run: Run, flush: torch.Tensor, spin: float) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(int(spin * CYCLES_PER_MICROSECOND))
    flush.zero_()
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def _l2_bytes() -> int:
    return int(torch.cuda.get_device_properties().L2_cache_size)
