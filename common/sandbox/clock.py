"""GPU time and host time of one process's calls, in turns of a few samples.

GPU time is taken by CUDA events around work that is already queued: the GPU spins until the host
has queued all of it, so that launching does not count. Where it has not, the sample is taken again
with a longer spin. Before each sample the L2 cache is flushed and the inputs change. Host time is
taken until the call returns, autograd included, with the GPU idle before it. A sample is the mean
of a burst of calls where host time ranks the case, as in a training loop; the results of a burst
stay alive until its end.

A round is a few samples of one timed callable. The harness asks for rounds, those of a solution and
those of eager and the limits in processes of their own, until every median is known; see
`measure/sampling.py`. All samples are in microseconds. Where memory is scarce, the harness has each
process give its memory back after a round; the next one begins with untimed calls then.
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
"""By name, a function that allocates what a limit reads and writes, and returns its call."""

WARM_UP_CALLS = 5
COLD_CALLS = 2
"""Untimed calls of a timed callable whose memory is new."""
LONGEST_WARM_UP = 0.1
"""Seconds of each kind of call that warms up, but two calls that live at once are made in any
case."""
CYCLES_PER_MICROSECOND = 2000
PROBE_BYTES = 128 << 20
PROBE_BURST = 30
WAKING = 1_000_000
"""Nanoseconds of untimed calls before a round of host time."""


class Clock:
    """The timed callables of one process: its calls, and the limits where it is asked for them."""

    def __init__(self, ours: Rotation, backward: bool, limits: Limits) -> None:
        """Warm up.

        Args:
            ours: The calls, on several inputs of one shape that change before each sample.
            backward: A call is forward with backward instead of forward alone.
            limits: Further timed callables, which have no inputs of their own. Each has memory for
                its rounds alone.
        """
        self.ours, self._limits = ours, limits
        around = (ours.renew, ours.keep)
        self.callables = {"solution": TimedCallable(_at_once(ours.run), *around)}
        if backward:
            self.callables["backward"] = TimedCallable(ours.begin, *around)
        else:
            self.callables["no_grad"] = TimedCallable(_at_once(ours.run), *around, grad=False)
        self._warm: set[str] = set()
        self._flush = memory.twice_the_l2()
        self._warm_up()

    def _warm_up(self) -> None:
        """Run the calls a few times, each by itself too, as a sample of GPU time makes it."""
        self._most = max(int(LONGEST_WARM_UP / self._cold()), 1)
        if self.ours.keeps:
            run_at_once(self.ours, self._most)
            self.ours.refuse_shared()
            self.ours.forget()
            memory.give_back()  # as much as several calls take
        if self.slow:  # the calls so far have warmed up, and launching is nothing beside them
            self._warm.update(self.callables)
        else:
            for name in self.callables:
                self._warm_up_alone(name)
        gc.collect()
        memory.synchronize()

    @property
    def slow(self) -> bool:
        """Return whether a call takes most of the seconds of a warm-up."""
        return self._most == 1

    def _cold(self) -> float:
        """Make the first calls; return the seconds that the last of them took, the GPU's too."""
        for _ in range(COLD_CALLS):
            self.ours.forget()
            memory.synchronize()
            start = time.perf_counter_ns()
            self.ours.run()
            memory.synchronize()
        took = time.perf_counter_ns() - start
        self.ours.forget()
        return took / 1e9

    def _warm_up_alone(self, name: str) -> None:
        """Make a few calls, and note in how long the host queues one; the first may allocate."""
        timed_callable = self.callables[name]
        took = [_queue(timed_callable) for _ in range(min(WARM_UP_CALLS, self._most))]
        timed_callable.queued_in(median(took))
        self.ours.delivered()
        self._warm.add(name)

    def get_ready(self, name: str) -> TimedCallable:
        """Return a timed callable; allocate what it needs and make untimed calls if that is new."""
        self._free_limits(but=name)
        if name not in self.callables:
            self.callables[name] = TimedCallable(_at_once(self._limits[name]()))
        if name not in self._warm:
            for _ in range(COLD_CALLS):
                _queue(self.callables[name])
            self.ours.delivered()
            self._warm.add(name)
        return self.callables[name]

    def give_back(self) -> None:
        """Free the results and the limits, and what torch keeps of their memory."""
        self.ours.forget()
        self._free_limits()
        self._warm.clear()
        memory.give_back()

    def _free_limits(self, but: str = "") -> None:
        for name in self._limits.keys() - {but}:
            self.callables.pop(name, None)
            self._warm.discard(name)

    def capture(self) -> bool:
        """Make the replay of forward's CUDA graphs a timed callable, if it can be captured."""
        if not torch.cuda.is_available() or not self.ours.capture():
            return False
        replay = _at_once(self.ours.replay)
        self.callables["graph"] = TimedCallable(replay, self.ours.renew, self.ours.keep)
        self._warm_up_alone("graph")
        return True

    def take_samples(self, name: str, clock: ByClock, rounds: int, burst: int = 1) -> list[float]:
        """Take samples of one timed callable by one clock.

        Args:
            name: The timed callable.
            clock: `gpu` or `host`.
            rounds: The number of samples.
            burst: The most calls in a sample of host time.
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
        """Make untimed calls, since the processor has slept since the last round."""
        end = time.perf_counter_ns() + WAKING
        while time.perf_counter_ns() < end:
            self._sample(timed_callable, "host", 1)

    def _sample(self, timed_callable: TimedCallable, clock: ByClock, burst: int) -> float:
        if clock == "gpu":
            return _gpu_time(timed_callable, self._flush)
        timed_callable.before()
        # so that a solution cannot tell the last call
        calls = burst // 2 + 1 + below(burst - burst // 2)
        sample = _host_time(timed_callable.ready(), calls, timed_callable.grad)
        timed_callable.after()
        return sample

    def throughput_run(
        self, name: str, rounds: int, renew: bool, run: bool, wait: bool, low_memory: bool = False
    ) -> None:
        """Make the calls of a timed callable round after round.

        Args:
            name: The timed callable; a round of a solution calls it on each of its inputs.
            rounds: The number of rounds.
            renew: Change the inputs before each round.
            run: Make the calls; otherwise the inputs change and nothing else happens.
            wait: Wait for the GPU at the end.
            low_memory: Memory is scarce: no call's graph is alive beside the next call.
        """
        timed_callable, ours = self.get_ready(name), self.ours
        one, prepare = timed_callable.ready(), ours.renew if renew else ours.forget
        calls = len(ours) if timed_callable.after == ours.keep else 1
        for _ in range(rounds):
            prepare()
            if run:
                for _ in range(calls):
                    one()
                    if low_memory:
                        ours.free_graphs()
            if run and wait and calls > 1:
                ours.keep_in_passing()
        ours.forget()  # so that freeing them is in the time of the calls
        self._free_limits()
        if wait:
            memory.synchronize()


class Probes:
    """Fixed small work, whose time shows whether the machine is disturbed."""

    def __init__(self) -> None:
        """Warm up."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        little = torch.zeros(8, device=device)
        self._host: Runnable = lambda: little + 1
        if device == "cuda":
            self._gpu = TimedCallable(_at_once(timed_callables.copy(PROBE_BYTES)))
            self._flush = memory.twice_the_l2()
        for _ in range(WARM_UP_CALLS):
            self._host()
            if device == "cuda":
                self._gpu.ready()()
        memory.synchronize()

    def take(self, clock: ByClock, rounds: int) -> list[float]:
        """Return microseconds of a copy by the GPU's clock, or of a launch by the host's."""
        if clock == "gpu":
            return [_gpu_time(self._gpu, self._flush) for _ in range(rounds)]
        return [_host_time(self._host, PROBE_BURST, grad=True) for _ in range(rounds)]


def _at_once(run: Runnable) -> Prepare:
    return lambda: run


def _queue(timed_callable: TimedCallable) -> float:
    """Make a call as a sample of GPU time does; return the microseconds until it is queued."""
    memory.synchronize()
    start = time.perf_counter_ns()
    timed_callable.before()
    with torch.set_grad_enabled(timed_callable.grad):
        timed_callable.ready()()
    took = (time.perf_counter_ns() - start) / 1e3
    timed_callable.after()
    return took


def _host_time(run: Runnable, calls: int, grad: bool) -> float:
    memory.synchronize()
    with torch.set_grad_enabled(grad):
        start = time.perf_counter_ns()
        for _ in range(calls):
            run()
        return (time.perf_counter_ns() - start) / 1e3 / calls


def _gpu_time(timed_callable: TimedCallable, flush: torch.Tensor) -> float:
    """Take one sample; take it again where the GPU was ready before the host."""
    while True:
        sample, late = _gpu_sample(timed_callable, flush)
        if not late or not timed_callable.spin_longer():
            return sample


def _gpu_sample(timed_callable: TimedCallable, flush: torch.Tensor) -> tuple[float, bool]:
    """Return the microseconds of one run, and whether the GPU came to it before all was queued.

    The work around it is queued on the timed stream but not timed.
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
