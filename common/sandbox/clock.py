"""Samples of GPU time and of host time of the calls in one process.

GPU time is measured by CUDA events around work that is already queued: the GPU spins until the host
has queued all of it, so that launch overhead does not count. If the spin ends too early, the sample
is repeated with a longer spin. Before each sample the L2 cache is flushed and the inputs change.
Host time is measured until the call returns, autograd included; the GPU is idle at the start. If
host time ranks the case, a sample is the mean of a burst of calls, as in a training loop, and the
results of the burst stay alive until its end.

The harness requests rounds of a few samples until every median is precise enough; see
`measure/timing.py`. All samples are in microseconds.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from common.sandbox import memory
from common.sandbox.rotation import Rotation, Runnable, TimedCall, below
from common.spec import ByClock, Product

Limits = Mapping[str, Callable[[], Runnable]]
"""Maps a limit's name to a function that allocates the limit's tensors and returns its call."""

WARM_UP_CALLS = 5
COLD_CALLS = 2
"""The number of untimed calls of a solution before its first time, and of a limit."""
LONGEST_WARM_UP = 0.1
"""The seconds of warm-up calls per timed callable. Two calls with live results are made even if
they take longer."""
SPINS = 300.0, 5000.0
"""The shortest spin in microseconds, in which the host queues a copy or nine products; and the
longest."""
CYCLES_PER_MICROSECOND = 2000
PROBE_BYTES = 128 << 20
PROBE_BURST = 30
WAKING = 1_000_000
"""The nanoseconds of untimed calls before a round of host time."""


@dataclass
class TimedCallable:
    """The timed part of a rotation's next call."""

    rotation: Rotation
    """The calls; before a sample its inputs change, and after it one result may be kept."""
    ready: Callable[[], Runnable]
    """Does the untimed part of a call and returns the timed part."""
    grad: bool = True
    spin: float = SPINS[0]
    """The microseconds for which the GPU spins while the host changes inputs and queues a call."""


def limit(run: Runnable) -> TimedCallable:
    """Return a timed callable of a call without inputs that change, such as a copy."""
    rotation = Rotation([TimedCall(run)])  # type: ignore[arg-type]
    return TimedCallable(rotation, lambda: rotation.run)


class Clock:
    """The timed callables of one process: its calls, and the limits in eager's process."""

    def __init__(
        self, rotation: Rotation, backward: bool, limits: Limits, name: str = "solution"
    ) -> None:
        """Warm up: make a few calls, first with all results alive, then as in samples.

        Args:
            rotation: The calls, on inputs that change before each sample.
            backward: Time forward with backward instead of only forward.
            limits: Further timed callables, whose memory is allocated only during their rounds.
            name: The name of the calls among the timed callables.
        """
        self.rotation, self._limits = rotation, limits
        self.callables = {name: TimedCallable(rotation, lambda: rotation.run)}
        if backward:
            self.callables["backward"] = TimedCallable(rotation, rotation.begin)
        else:
            self.callables["no_grad"] = TimedCallable(rotation, lambda: rotation.run, grad=False)
        self._flush = memory.twice_the_l2()
        seconds = [_cold_call(rotation) for _ in range(COLD_CALLS)][-1]
        calls = max(int(LONGEST_WARM_UP / seconds), 1)
        self.slow = calls == 1
        """Whether a call takes more than half of LONGEST_WARM_UP."""
        if rotation.slots:
            rotation.run_at_once(calls)
            rotation.refuse_shared()
            rotation.forget()
            memory.give_back()  # torch caches the memory of several calls by now
        if not self.slow:  # else the calls so far warmed up
            for timed_callable in self.callables.values():
                _warm_up(timed_callable, min(WARM_UP_CALLS, calls))
        gc.collect()
        memory.synchronize()

    def ready(self, name: str) -> bool:
        """Prepare a timed callable: allocate a limit, or capture forward as the CUDA graph `graph`.

        Return whether it can be timed: a capture may fail, and needs a GPU.
        """
        self._free_limits(keep=name)
        if name in self.callables:
            return True
        if name != "graph":
            self.callables[name] = limit(self._limits[name]())
        elif torch.cuda.is_available() and self.rotation.capture():
            self.callables[name] = TimedCallable(self.rotation, lambda: self.rotation.replay)
        else:
            return False
        _warm_up(self.callables[name], COLD_CALLS)
        return True

    def _free_limits(self, keep: str = "") -> None:
        for name in self._limits.keys() - {keep}:
            self.callables.pop(name, None)

    def take_samples(self, name: str, clock: ByClock, rounds: int, burst: int = 1) -> list[float]:
        """Take `rounds` samples of one timed callable by one clock; see `wire.TakeSamples`."""
        self.ready(name)
        timed_callable = self.callables[name]
        if clock == "host" and not self.slow:  # the processor slept after the last round
            end = time.perf_counter_ns() + WAKING
            while time.perf_counter_ns() < end:
                _host_sample(timed_callable, 1)
        samples = [
            _gpu_time(timed_callable, self._flush)
            if clock == "gpu"
            # a random number, so that a solution cannot recognize the last call of a burst
            else _host_sample(timed_callable, burst // 2 + 1 + below(burst - burst // 2))
            for _ in range(rounds)
        ]
        self.rotation.forget()
        self._free_limits()
        memory.finish()  # the harness reads the kept results in another CUDA context
        return [round(sample, 2) for sample in samples]

    def run(self, name: str, rounds: int, renew: bool, call: bool, wait: bool) -> None:
        """Make the calls of a timed callable round after round; see `wire.RunCalls`."""
        self.ready(name)
        timed_callable = self.callables[name]
        rotation, make_call = timed_callable.rotation, timed_callable.ready()
        prepare = rotation.renew if renew else rotation.forget
        for _ in range(rounds):
            prepare()
            if call:
                for _ in range(len(rotation)):
                    make_call()
                if wait:
                    rotation.keep(in_passing=True)
        rotation.forget()  # the time of a long run includes freeing the results
        self._free_limits()
        if wait:
            memory.synchronize()


# --- the limits and the probe ---------------------------------------------------------------------


def copy(nbytes: int) -> Runnable:
    """Return a copy whose bytes read and written add up to `nbytes`: the limit of memory."""
    source, target = (
        torch.empty(max(nbytes // 2, 1), dtype=torch.uint8, device="cuda") for _ in range(2)
    )
    source.random_(generator=torch.Generator("cuda"))
    return lambda: target.copy_(source)


def dense(products: Sequence[Product], dtype: torch.dtype) -> Runnable:
    """Return dense products of these shapes, run one after the other: the limit of arithmetic.

    torch runs them with the vendor's library. The values are random, since zeros would draw less
    power and run faster. Each product is freed before the next one.
    """
    generator = torch.Generator("cuda")

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=dtype, device="cuda", generator=generator)

    factors = [(random(m, k), random(n, k)) for m, k, n in products]

    def run() -> None:
        for pair in factors:
            torch.nn.functional.linear(*pair)

    return run


class Probes:
    """A copy and a launch of fixed size, whose times show whether the machine is disturbed."""

    def __init__(self) -> None:
        """Warm up."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        small = torch.zeros(8, device=device)
        self._launch: Runnable = lambda: small + 1
        for _ in range(WARM_UP_CALLS):
            self._launch()
        if device == "cuda":
            self._copy, self._flush = limit(copy(PROBE_BYTES)), memory.twice_the_l2()
            _warm_up(self._copy, WARM_UP_CALLS)
        memory.synchronize()

    def take(self, clock: ByClock, rounds: int) -> list[float]:
        """Return the microseconds of a copy in GPU time, or of a launch in host time."""
        if clock == "gpu":
            return [_gpu_time(self._copy, self._flush) for _ in range(rounds)]
        return [_host_time(self._launch, PROBE_BURST, grad=True) for _ in range(rounds)]


# --- one sample -----------------------------------------------------------------------------------


def _cold_call(rotation: Rotation) -> float:
    """Return the seconds of a call until the GPU has finished."""
    memory.synchronize()
    start = time.perf_counter_ns()
    rotation.run()
    memory.synchronize()
    seconds = (time.perf_counter_ns() - start) / 1e9
    rotation.forget()
    return seconds


def _warm_up(timed_callable: TimedCallable, calls: int) -> None:
    """Make untimed calls, each as a sample, and keep none of their results."""
    for _ in range(calls):
        _host_sample(timed_callable, 1)
    timed_callable.rotation.delivered()


def _host_sample(timed_callable: TimedCallable, calls: int) -> float:
    timed_callable.rotation.renew()
    sample = _host_time(timed_callable.ready(), calls, timed_callable.grad)
    timed_callable.rotation.keep()
    return sample


def _host_time(run: Runnable, calls: int, grad: bool) -> float:
    memory.synchronize()
    with torch.set_grad_enabled(grad):
        start = time.perf_counter_ns()
        for _ in range(calls):
            run()
        return (time.perf_counter_ns() - start) / 1e3 / calls


def _gpu_time(timed_callable: TimedCallable, flush: torch.Tensor) -> float:
    """Return the microseconds of one run; repeat it if the GPU began before all was queued.

    The work before and after the run is queued on the timed stream but not timed.
    """
    rotation = timed_callable.rotation
    while True:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int(timed_callable.spin * CYCLES_PER_MICROSECOND))
        rotation.renew()
        with torch.set_grad_enabled(timed_callable.grad):
            run = timed_callable.ready()
            flush.zero_()
            start.record()
            run()
            end.record()
        late = start.query()
        rotation.keep()
        end.synchronize()
        if not late or timed_callable.spin == SPINS[1]:
            return float(start.elapsed_time(end)) * 1e3
        timed_callable.spin = min(2 * timed_callable.spin, SPINS[1])
