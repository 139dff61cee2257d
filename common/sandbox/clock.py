"""GPU time and host time of one call, beside eager and the limits; runs in a solution's process.

GPU time: CUDA events around work that is already queued (the GPU spins until the host has queued
all of it, so that launching is not counted), the L2 cache flushed, inputs in rotation and changed
before each sample, the contestants taken in turn in shuffled order. Host time: until the call
returns, the GPU idle before it, autograd included; where it ranks the case each sample is the mean
of a burst of calls, as a training loop makes them. Either clock stops once every median is known to
its precision, or its time or its rounds are up. All samples are microseconds.
"""

from __future__ import annotations

import gc
import itertools
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from common.sandbox import stopping
from common.sandbox.rotation import Rotation

Run = Callable[[], object]
Ready = Callable[[], Run]
"""Does what is not timed, and returns what is."""
Samples = dict[str, list[float]]
Product = Sequence[int]

PRECISION = {"gpu": 0.01, "host": 0.02}
"""How wide the 95 % interval of a contestant's median may be, in parts of it."""
LONGEST = 3.0
"""Seconds for which either clock, and the replays, may go on for the least number of rounds."""
WARM_UP_CALLS = 5
"""One more than the results that a rotation keeps alive, so that no sample has to allocate."""
RENEWAL = 100.0
"""Microseconds in which the host queues a change of inputs."""
CYCLES_PER_MICROSECOND = 2000
LONGEST_SPIN = 5000.0
QUEUING = 300.0
"""Microseconds in which the host has queued a copy or nine products."""


def measure(
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
    """`{"gpu": {"solution", "eager", "copy", ...}, "host": {"solution", "eager", ...}}`, samples of
    each. `solution` and `eager` run forward, or forward and backward. Beside them, by GPU time:
    `dense` where the case has products, `backward` alone, and of forward the replay of a `graph`
    where it can be captured; by host time forward with `no_grad`.

    `ours` are several inputs of one shape, changed before each sample; `eager` has one of its own
    and is called in the same way; `copy_bytes` is what the copy moves, reads and writes together;
    `products` are m, k and n of the dense products; `seconds` is how long each of the two clocks
    may run; `burst` is how many calls at most make one sample of host time.
    """
    contestants: dict[str, Run] = {"solution": ours.run, "eager": eager.run}
    for run in contestants.values():
        _warm_up(run)
    hosted = contestants if backward else contestants | {"no_grad": ours.run}
    if not backward:
        with torch.no_grad():  # to torch.compile that is another graph
            _warm_up(ours.run)
    around = {"solution": (ours.renew, ours.keep)}

    def host_time(name: str) -> float:
        before, after = around.get(name, NOTHING)
        before()
        sample = _host_time(hosted[name], burst, grad=name != "no_grad")
        after()
        return sample

    cold = {name: _cold(run) for name, run in contestants.items()}
    host = _sample(hosted, host_time, seconds["host"], PRECISION["host"])
    if not torch.cuda.is_available():  # only tests come here
        return {"gpu": {}, "host": host}
    limits = {"copy": _copy(copy_bytes)}
    if products:
        limits["dense"] = _dense(products, getattr(torch, dtype))
    for run in limits.values():
        _warm_up(run)
    queued = {name: _at_once(run) for name, run in (contestants | limits).items()}
    spins = {name: 2 * max(cold[name], *host[name]) + RENEWAL for name in contestants}
    if backward:
        queued["backward"] = ours.begin
        spins["backward"] = spins["solution"]
    flush = _twice_the_l2()

    def gpu_time(name: str) -> float:
        spin = min(spins.get(name, QUEUING), LONGEST_SPIN)
        return _gpu_time(queued[name], flush, spin, *around.get(name, NOTHING))

    gpu = _sample(queued, gpu_time, seconds["gpu"], PRECISION["gpu"])
    if not backward and (graph := _captured(ours.forwards)):
        queued["graph"] = _at_once(graph)
        gpu |= _sample(["graph"], gpu_time, seconds["gpu"], PRECISION["gpu"])
    return {"gpu": gpu, "host": host}


def measure_alone(ours: list[Any], *, backward: bool, seconds: float) -> list[float]:
    """GPU time of the solution by itself, to be held against itself in another configuration."""
    run = _rotation([as_run(call, backward) for call in ours])
    _warm_up(run)
    spin = min(2 * _cold(run), LONGEST_SPIN)
    flush = _twice_the_l2()

    def gpu_time(_: str) -> float:
        return _gpu_time(_at_once(run), flush, spin, *NOTHING)

    return _sample(["solution"], gpu_time, seconds, PRECISION["gpu"])["solution"]


def _nothing() -> None:
    pass


NOTHING = (_nothing, _nothing)


def _copy(nbytes: int) -> Run:
    """So many bytes read and written: what binds where memory does."""
    source, target = (
        torch.empty(max(nbytes // 2, 1), dtype=torch.uint8, device="cuda") for _ in range(2)
    )
    source.random_(generator=torch.Generator("cuda"))
    return lambda: target.copy_(source)


def _dense(products: list[Product], dtype: torch.dtype) -> Run:
    """One product after the other, as the vendor's library runs them: what binds where arithmetic
    does. Random values, since zeros would draw less power and run faster."""

    generator = torch.Generator("cuda")

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=dtype, device="cuda", generator=generator)

    factors = [(random(m, k), random(n, k)) for m, k, n in products]
    return lambda: [torch.nn.functional.linear(*pair) for pair in factors]


def as_run(call: Any, backward: bool) -> Run:
    """Forward, or forward and the gradients of what it returned."""
    forward, wanted, upstream = call
    if not backward:
        return forward  # type: ignore[no-any-return]
    return lambda: torch.autograd.grad(forward(), wanted, upstream)


def _rotation(runs: Iterable[Run]) -> Run:
    """Another one with each call."""
    turn = itertools.cycle(runs)
    return lambda: next(turn)()


def _at_once(run: Run) -> Ready:
    return lambda: run


def _captured(forwards: Sequence[Run]) -> Run | None:
    """The replays of their CUDA graphs in rotation; None where they cannot be captured.

    A call that waits for the GPU is found before it is captured, since a capture that fails leaves
    torch's own random generator unusable in this process; the limits draw from one of their own.
    """
    try:
        torch.cuda.set_sync_debug_mode("error")
        for forward in forwards:
            forward()
        torch.cuda.set_sync_debug_mode("default")
        return _rotation([_capture(forward).replay for forward in forwards])
    except Exception:  # whatever the solution or torch raises, there is no replay to time
        return None
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()


def _capture(forward: Run) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    # a capture that fails does not leave its stream again by itself
    with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph):
        forward()
    return graph


def _warm_up(run: Run) -> None:
    for _ in range(WARM_UP_CALLS):
        run()
    _synchronize()


def _cold(run: Run) -> float:
    """The longest that the host takes for a call by itself, as each sample of GPU time has it."""
    return max(_host_time(run, 1, grad=True) for _ in range(WARM_UP_CALLS))


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _sample(
    contestants: Iterable[str], clock: Callable[[str], float], seconds: float, precision: float
) -> Samples:
    """In turn, in an order that is shuffled each round, until the medians are known, or the time or
    the rounds are up."""
    samples: Samples = {name: [] for name in contestants}
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
    calls = random.randint(burst // 2 + 1, burst)  # nobody can tell which is the last
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
    """`before` and `after` are queued on the timed stream, outside of what is timed."""
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
    """To be written between two calls, so that the second finds nothing of the first's."""
    size = torch.cuda.get_device_properties().L2_cache_size
    return torch.empty(2 * size, dtype=torch.uint8, device="cuda")
