"""GPU time and host time of one call, beside eager and a plain copy; runs in a solution's process.

GPU time: CUDA events around work that is already queued (the GPU spins until the host has queued
all of it, so that launching is not counted), the L2 cache flushed, inputs in rotation, the
contestants taken in turn in shuffled order. Host time: until the call returns, the GPU idle before
it, autograd included; where it ranks the case each sample is the mean of a burst of calls, as a
training loop makes them. All samples are microseconds.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from typing import Any

import torch

from common.measure.rotation import Rotation

Run = Callable[[], object]
Samples = dict[str, list[float]]

ROUNDS = range(8, 101)
"""At least and at most so many samples of each contestant."""
LONGEST = 10.0
WARM_UP_CALLS = 5
"""One more than the results that a rotation keeps alive, so that no sample has to allocate."""
RENEWAL = 100.0
"""Microseconds in which the host queues a change of inputs."""
CYCLES_PER_MICROSECOND = 2000
LONGEST_SPIN = 5000.0


def measure(
    ours: Rotation,
    eager: Any,
    *,
    backward: bool,
    copy_bytes: int,
    seconds: float,
    burst: int,
) -> dict[str, Samples]:
    """`{"gpu": {"solution", "eager", "copy"}, "host": {"solution", "eager"}}`, samples of each.

    `ours` are several inputs of one shape, changed before each sample; `copy_bytes` is what the
    copy moves, reads and writes together; `seconds` is how long each of the two clocks may run;
    `burst` is how many calls at most make one sample of host time.
    """
    contestants: dict[str, Run] = {"solution": ours.run, "eager": _run(eager, backward)}
    for run in contestants.values():
        _warm_up(run)

    def host_time(name: str, run: Run) -> float:
        if name != "solution":
            return _host_time(run, burst)
        ours.renew()
        sample = _host_time(run, burst)
        ours.keep()
        return sample

    host = _sample(contestants, host_time, seconds)
    if not torch.cuda.is_available():  # only tests come here
        return {"gpu": {}, "host": host}
    source, target = (
        torch.empty(max(copy_bytes // 2, 1), dtype=torch.uint8, device="cuda") for _ in range(2)
    )
    source.random_()
    contestants["copy"] = lambda: target.copy_(source)
    spins = {name: 2 * max(samples) for name, samples in host.items()} | {"copy": 50.0}
    spins["solution"] += RENEWAL
    flush = torch.empty(2 * _l2_bytes(), dtype=torch.uint8, device="cuda")

    def gpu_time(name: str, run: Run) -> float:
        around = (ours.renew, ours.keep) if name == "solution" else (_nothing, _nothing)
        return _gpu_time(run, flush, min(spins[name], LONGEST_SPIN), *around)

    return {"gpu": _sample(contestants, gpu_time, seconds), "host": host}


def _nothing() -> None:
    pass


def _run(call: Any, backward: bool) -> Run:
    forward, wanted, upstream = call
    if not backward:
        return forward  # type: ignore[no-any-return]
    return lambda: torch.autograd.grad(forward(), wanted, upstream)


def _warm_up(run: Run) -> None:
    for _ in range(WARM_UP_CALLS):
        run()
    _synchronize()


def _synchronize() -> None:
    if torch.cuda.is_available():
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
    calls = random.randint(burst // 2 + 1, burst)  # nobody can tell which is the last
    _synchronize()
    start = time.perf_counter_ns()
    for _ in range(calls):
        run()
    return (time.perf_counter_ns() - start) / 1e3 / calls


def _gpu_time(
    run: Run,
    flush: torch.Tensor,
    spin: float,
    before: Callable[[], None],
    after: Callable[[], None],
) -> float:
    """`before` and `after` are queued on the timed stream, outside of what is timed."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(int(spin * CYCLES_PER_MICROSECOND))
    before()
    flush.zero_()
    start.record()
    run()
    end.record()
    after()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def _l2_bytes() -> int:
    return int(torch.cuda.get_device_properties().L2_cache_size)
