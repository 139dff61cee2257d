"""Samples of GPU time and of host time of the calls in one process.

GPU time is measured by CUDA events around work that is already queued: the GPU spins until the host
has queued all of it, so that launch overhead does not count. If the spin ends too early, the sample
is repeated with a longer spin. Before each sample the L2 cache is flushed and the inputs change.
Host time is measured until the call returns, autograd included; the GPU is idle at the start. If
host time ranks the case, a sample is the mean of a burst of calls, as in a training loop, and the
results of the burst stay alive until its end.

A round is a few samples of one timed callable. The harness requests rounds until every median is
precise enough; see `measure/sampling.py`. The solution runs in one process; eager and the limits
run in another. All samples are in microseconds. If memory is scarce, the harness has each process
release its memory after a round, and the next round begins with untimed calls.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping

import torch

from common.sandbox import memory, timed_callables
from common.sandbox.dice import below
from common.sandbox.rotation import Rotation, run_at_once
from common.sandbox.timed_callables import Prepare, Runnable, TimedCallable
from common.spec import ByClock
from common.stats import median

Limits = Mapping[str, Callable[[], Runnable]]
"""Maps a limit's name to a function that allocates the limit's tensors and returns its call."""

WARM_UP_CALLS = 5
COLD_CALLS = 2
"""The number of untimed calls of a timed callable whose memory is newly allocated."""
LONGEST_WARM_UP = 0.1
"""The seconds of warm-up calls per timed callable. Two calls with live results are made even if
they take longer."""
CYCLES_PER_MICROSECOND = 2000
PROBE_BYTES = 128 << 20
PROBE_BURST = 30
WAKING = 1_000_000
"""The nanoseconds of untimed calls before a round of host time."""


class Clock:
    """The timed callables of one process: its calls, and the limits in eager's process."""

    def __init__(self, rotation: Rotation, backward: bool, limits: Limits) -> None:
        """Warm up.

        Args:
            rotation: The calls, on several inputs of one shape that change before each sample.
            backward: Time forward with backward instead of only forward.
            limits: Further timed callables, which take no inputs. The memory of a limit is
                allocated only during its rounds.
        """
        self.ours, self._limits = rotation, limits
        around = (rotation.renew, rotation.keep)
        self.callables = {"solution": TimedCallable(_at_once(rotation.run), *around)}
        if backward:
            self.callables["backward"] = TimedCallable(rotation.begin, *around)
        else:
            self.callables["no_grad"] = TimedCallable(_at_once(rotation.run), *around, grad=False)
        self._warm: set[str] = set()
        self._flush = memory.twice_the_l2()
        self._warm_up()

    def _warm_up(self) -> None:
        """Make a few calls, first with all results alive, then as in a sample of GPU time."""
        self._max_calls = max(int(LONGEST_WARM_UP / self._time_cold_call()), 1)
        if self.ours.keeps:
            run_at_once(self.ours, self._max_calls)
            self.ours.refuse_shared()
            self.ours.forget()
            memory.give_back()  # torch caches the memory of several calls by now
        if self.slow:  # these calls were warm-up enough, and launch overhead is small next to them
            self._warm.update(self.callables)
        else:
            for name in self.callables:
                self._warm_up_callable(name)
        gc.collect()
        memory.synchronize()

    @property
    def slow(self) -> bool:
        """Return whether a call takes more than half of `LONGEST_WARM_UP`."""
        return self._max_calls == 1

    def _time_cold_call(self) -> float:
        """Make the first calls; return the seconds of the last one, until the GPU has finished."""
        for _ in range(COLD_CALLS):
            self.ours.forget()
            memory.synchronize()
            start = time.perf_counter_ns()
            self.ours.run()
            memory.synchronize()
        nanoseconds = time.perf_counter_ns() - start
        self.ours.forget()
        return nanoseconds / 1e9

    def _warm_up_callable(self, name: str) -> None:
        """Make a few calls, and set the spin by the median time in which the host queues a call."""
        timed_callable = self.callables[name]
        times = [_queue(timed_callable) for _ in range(min(WARM_UP_CALLS, self._max_calls))]
        timed_callable.queued_in(median(times))
        self.ours.delivered()
        self._warm.add(name)

    def get_ready(self, name: str) -> TimedCallable:
        """Return a timed callable, warmed up: allocate its memory and make untimed calls."""
        self._free_limits(keep=name)
        if name not in self.callables:
            self.callables[name] = TimedCallable(_at_once(self._limits[name]()))
        if name not in self._warm:
            for _ in range(COLD_CALLS):
                _queue(self.callables[name])
            self.ours.delivered()
            self._warm.add(name)
        return self.callables[name]

    def give_back(self) -> None:
        """Free the results, the limits and the memory that torch caches of them."""
        self.ours.forget()
        self._free_limits()
        self._warm.clear()
        memory.give_back()

    def _free_limits(self, keep: str = "") -> None:
        for name in self._limits.keys() - {keep}:
            self.callables.pop(name, None)
            self._warm.discard(name)

    def capture(self) -> bool:
        """Add the replay of forward's CUDA graphs to the timed callables, if capture succeeds."""
        if not torch.cuda.is_available() or not self.ours.capture():
            return False
        replay = _at_once(self.ours.replay)
        self.callables["graph"] = TimedCallable(replay, self.ours.renew, self.ours.keep)
        self._warm_up_callable("graph")
        return True

    def take_samples(self, name: str, clock: ByClock, rounds: int, burst: int = 1) -> list[float]:
        """Take samples of one timed callable by one clock.

        Args:
            name: The timed callable.
            clock: `gpu` or `host`.
            rounds: The number of samples.
            burst: The maximum number of calls in a sample of host time.
        """
        timed_callable = self.get_ready(name)
        if clock == "host" and not self.slow:
            self._wake(timed_callable)
        samples = [round(self._sample(timed_callable, clock, burst), 2) for _ in range(rounds)]
        self.ours.forget()
        self._free_limits()
        memory.synchronize()  # the harness reads the kept results in another CUDA context
        return samples

    def _wake(self, timed_callable: TimedCallable) -> None:
        """Make untimed calls, since the processor slept after the last round."""
        end = time.perf_counter_ns() + WAKING
        while time.perf_counter_ns() < end:
            self._sample(timed_callable, "host", 1)

    def _sample(self, timed_callable: TimedCallable, clock: ByClock, burst: int) -> float:
        if clock == "gpu":
            return _gpu_time(timed_callable, self._flush)
        timed_callable.before()
        # a random number, so that a solution cannot recognize the last call of a burst
        calls = burst // 2 + 1 + below(burst - burst // 2)
        sample = _host_time(timed_callable.ready(), calls, timed_callable.grad)
        timed_callable.after()
        return sample

    def throughput_run(
        self, name: str, rounds: int, renew: bool, run: bool, wait: bool, low_memory: bool = False
    ) -> None:
        """Make the calls of a timed callable round after round.

        Args:
            name: The timed callable; a round of a solution makes one call on each input.
            rounds: The number of rounds.
            renew: Change the inputs before each round.
            run: Make the calls; otherwise only change the inputs.
            wait: Wait for the GPU at the end.
            low_memory: Memory is scarce: free a call's autograd graph before the next call.
        """
        timed_callable, rotation = self.get_ready(name), self.ours
        make_call, prepare = timed_callable.ready(), rotation.renew if renew else rotation.forget
        calls = len(rotation) if timed_callable.after == rotation.keep else 1
        for _ in range(rounds):
            prepare()
            if run:
                for _ in range(calls):
                    make_call()
                    if low_memory:
                        rotation.free_graphs()
            if run and wait and calls > 1:
                rotation.keep_in_passing()
        rotation.forget()  # so that the measured time includes freeing the results
        self._free_limits()
        if wait:
            memory.synchronize()


class Probes:
    """A copy and a launch of fixed size, whose times show whether the machine is disturbed."""

    def __init__(self) -> None:
        """Warm up."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        small = torch.zeros(8, device=device)
        self._host: Runnable = lambda: small + 1
        if device == "cuda":
            self._gpu = TimedCallable(_at_once(timed_callables.copy(PROBE_BYTES)))
            self._flush = memory.twice_the_l2()
        for _ in range(WARM_UP_CALLS):
            self._host()
            if device == "cuda":
                self._gpu.ready()()
        memory.synchronize()

    def take(self, clock: ByClock, rounds: int) -> list[float]:
        """Return the microseconds of a copy in GPU time, or of a launch in host time."""
        if clock == "gpu":
            return [_gpu_time(self._gpu, self._flush) for _ in range(rounds)]
        return [_host_time(self._host, PROBE_BURST, grad=True) for _ in range(rounds)]


def _at_once(run: Runnable) -> Prepare:
    return lambda: run


def _queue(timed_callable: TimedCallable) -> float:
    """Make a call as in a sample of GPU time; return the microseconds until it is queued."""
    memory.synchronize()
    start = time.perf_counter_ns()
    timed_callable.before()
    with torch.set_grad_enabled(timed_callable.grad):
        timed_callable.ready()()
    microseconds = (time.perf_counter_ns() - start) / 1e3
    timed_callable.after()
    return microseconds


def _host_time(run: Runnable, calls: int, grad: bool) -> float:
    memory.synchronize()
    with torch.set_grad_enabled(grad):
        start = time.perf_counter_ns()
        for _ in range(calls):
            run()
        return (time.perf_counter_ns() - start) / 1e3 / calls


def _gpu_time(timed_callable: TimedCallable, flush: torch.Tensor) -> float:
    """Take one sample; repeat it if the GPU's spin ended before the host had queued the call."""
    while True:
        sample, late = _gpu_sample(timed_callable, flush)
        if not late or not timed_callable.spin_longer():
            return sample


def _gpu_sample(timed_callable: TimedCallable, flush: torch.Tensor) -> tuple[float, bool]:
    """Return the microseconds of one run, and whether the GPU began it before all was queued.

    The work before and after the run is queued on the timed stream but not timed.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(int(timed_callable.spin * CYCLES_PER_MICROSECOND))
    timed_callable.before()
    with torch.set_grad_enabled(timed_callable.grad):
        run = timed_callable.ready()
        flush.zero_()
        start.record()
        run()
        end.record()
    late = start.query()
    timed_callable.after()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3, late
