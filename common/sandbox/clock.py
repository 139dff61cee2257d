"""GPU time and host time of a solution, of eager and of the limits, in the solution's process.

GPU time is taken by CUDA events around work that is already queued: the GPU spins until the host
has queued all of it, so that launching does not count. Before each sample the L2 cache is flushed
and the inputs change. Host time is taken until the call returns, autograd included, with the GPU
idle before it. A sample is the mean of a burst of calls where host time ranks the case, as in a
training loop.

The contestants run in turns, in a new random order each round. Either clock stops once every
median is known to its precision, or once its time or its rounds are up. All samples are in
microseconds.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from common.sandbox import contestants, stopping
from common.sandbox.contestants import Run
from common.sandbox.rotation import Rotation
from common.spec import Product

Ready = Callable[[], Run]
"""Does the untimed part of a call and returns the timed part."""
Samples = dict[str, list[float]]
"""Samples in microseconds by contestant."""

PRECISION = {"gpu": 0.01, "host": 0.02}
"""The widest 95 % interval of a median that is known well enough, as a share of the median."""
LONGEST = 3.0
"""Seconds after which either clock, and the replays, stop even before the least rounds."""
WARM_UP_CALLS = 5
"""One more than the results that a rotation keeps alive, so that no sample has to allocate."""
RENEWAL = 100.0
"""Microseconds in which the host queues a change of inputs."""
CYCLES_PER_MICROSECOND = 2000
LONGEST_SPIN = 5000.0
QUEUING = 300.0
"""Microseconds in which the host queues a copy or nine products."""


def _nothing() -> None:
    pass


NOTHING = (_nothing, _nothing)


def take_samples(
    ours: Rotation,
    eager: Rotation,
    *,
    backward: bool,
    copy_bytes: int,
    products: list[Product],
    dtype: str,
    seconds: dict[str, float],
    burst: int,
) -> dict[str, Samples]:
    """Take samples of the solution, of eager and of the limits.

    Args:
        ours: The solution on several inputs of one shape, which change before each sample.
        eager: The reference on one input of the same shape.
        backward: Time forward with backward instead of forward alone.
        copy_bytes: The bytes that the copy reads and writes together.
        products: m, k and n of the dense products.
        dtype: The dense products' dtype.
        seconds: The time that each of the two clocks may take, by its name.
        burst: The most calls in one sample of host time.

    Returns:
        `{"gpu": {"solution": [...], "eager": [...], "copy": [...]}, "host": {"solution": ...}}`.
        GPU time has `dense` where the case has products, `backward` alone where backward is timed,
        and otherwise the `graph` replay of forward where it can be captured. Host time has forward
        with `no_grad` where forward is timed. Without a GPU, which only tests do, "gpu" is empty.
    """
    runs: dict[str, Run] = {"solution": ours.run, "eager": eager.run}
    for run in runs.values():
        _warm_up(run)
    if not backward:
        with torch.no_grad():  # to torch.compile that is another graph
            _warm_up(ours.run)
    cold = {name: _cold(run) for name, run in runs.items()}
    hosted = runs if backward else runs | {"no_grad": ours.run}
    host = _host_samples(hosted, ours, seconds["host"], burst)
    if not torch.cuda.is_available():
        return {"gpu": {}, "host": host}
    limits = {"copy": contestants.copy(copy_bytes)}
    if products:
        limits["dense"] = contestants.dense(products, getattr(torch, dtype))
    spins = {name: 2 * max(cold[name], *host[name]) + RENEWAL for name in runs}
    return {"gpu": _gpu_samples(runs, limits, spins, ours, backward, seconds["gpu"]), "host": host}


def _host_samples(runs: Mapping[str, Run], ours: Rotation, seconds: float, burst: int) -> Samples:
    around = _around(ours)

    def host_time(name: str) -> float:
        before, after = around.get(name, NOTHING)
        before()
        sample = _host_time(runs[name], burst, grad=name != "no_grad")
        after()
        return sample

    return _sample(runs, host_time, seconds, PRECISION["host"])


def _gpu_samples(
    runs: Mapping[str, Run],
    limits: Mapping[str, Run],
    spins: dict[str, float],
    ours: Rotation,
    backward: bool,
    seconds: float,
) -> Samples:
    for run in limits.values():
        _warm_up(run)
    queued = {name: _at_once(run) for name, run in {**runs, **limits}.items()}
    if backward:
        queued["backward"] = ours.begin
        spins["backward"] = spins["solution"]
    flush, around = _twice_the_l2(), _around(ours)

    def gpu_time(name: str) -> float:
        spin = min(spins.get(name, QUEUING), LONGEST_SPIN)
        return _gpu_time(queued[name], flush, spin, *around.get(name, NOTHING))

    samples = _sample(queued, gpu_time, seconds, PRECISION["gpu"])
    if not backward and (graph := contestants.captured(ours.forwards)):
        queued["graph"] = _at_once(graph)
        samples |= _sample(["graph"], gpu_time, seconds, PRECISION["gpu"])
    return samples


def _around(ours: Rotation) -> dict[str, tuple[Callable[[], None], Callable[[], None]]]:
    """Return the untimed work before and after each sample, by contestant."""
    return {"solution": (ours.renew, ours.keep)}


def take_samples_alone(calls: list[Any], *, backward: bool, seconds: float) -> list[float]:
    """Take samples of GPU time of the solution alone, to compare its configurations.

    Args:
        calls: `(forward, gradient inputs, upstream gradient)` of each input, taken in turn.
        backward: Time forward with backward instead of forward alone.
        seconds: The time that the clock may take.
    """
    run = contestants.in_turn([contestants.as_run(call, backward) for call in calls])
    _warm_up(run)
    spin = min(2 * _cold(run), LONGEST_SPIN)
    flush = _twice_the_l2()

    def gpu_time(_: str) -> float:
        return _gpu_time(_at_once(run), flush, spin, *NOTHING)

    return _sample(["solution"], gpu_time, seconds, PRECISION["gpu"])["solution"]


def _at_once(run: Run) -> Ready:
    return lambda: run


def _warm_up(run: Run) -> None:
    for _ in range(WARM_UP_CALLS):
        run()
    _synchronize()


def _cold(run: Run) -> float:
    """Return the longest host time of a call by itself, as each sample of GPU time makes it."""
    return max(_host_time(run, 1, grad=True) for _ in range(WARM_UP_CALLS))


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _sample(
    names: Iterable[str], clock: Callable[[str], float], seconds: float, precision: float
) -> Samples:
    """Take rounds of samples until the medians are known, or the time or the rounds are up."""
    samples: Samples = {name: [] for name in names}
    gc.collect()
    start = time.monotonic()
    for done in range(stopping.ROUNDS.stop - 1):
        elapsed = time.monotonic() - start
        if elapsed > LONGEST or (elapsed > seconds and done >= stopping.ROUNDS.start):
            break
        if stopping.enough(samples, precision):
            break
        for name in random.sample(list(samples), len(samples)):
            samples[name].append(round(clock(name), 2))
    return samples


def _host_time(run: Run, burst: int, grad: bool) -> float:
    calls = random.randint(burst // 2 + 1, burst)  # so that a solution cannot tell the last call
    _synchronize()
    with torch.set_grad_enabled(grad):
        start = time.perf_counter_ns()
        for _ in range(calls):
            run()
        return (time.perf_counter_ns() - start) / 1e3 / calls


def _gpu_time(
    ready: Ready,
    flush: torch.Tensor,
    spin: float,
    before: Callable[[], None],
    after: Callable[[], None],
) -> float:
    """Take one sample; `before` and `after` are queued on the timed stream but not timed."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(int(spin * CYCLES_PER_MICROSECOND))
    before()
    run = ready()
    flush.zero_()
    start.record()
    run()
    end.record()
    after()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def _twice_the_l2() -> torch.Tensor:
    """Return memory to write between two calls, so that the second finds the L2 cache cold."""
    size = torch.cuda.get_device_properties().L2_cache_size
    return torch.empty(2 * size, dtype=torch.uint8, device="cuda")
