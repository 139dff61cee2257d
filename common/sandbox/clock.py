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

import functools
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from common.sandbox import backend
from common.sandbox.interpreter.bounds import WATCH
from common.sandbox.rotation import (
    SCARCE,
    Changing,
    Rotation,
    Runnable,
    TimedCall,
    below,
    give_back,
)
from common.sandbox.session import Session
from common.spec import ByClock, Product
from common.timed_requests import BeginTiming, RunCalls, TakeSamples
from common.wire import Arguments, Reply

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
PROBE_WAKING = 4
"""The number of discarded probe samples, whose launches take half a millisecond in all."""
WAKING = 1_000_000
"""The nanoseconds of untimed calls before a round of host time."""


@dataclass
class TimedCallable:
    """A way to make the next call of a rotation."""

    rotation: Rotation
    """The calls; before a sample its inputs change, and after it one result may be kept."""
    call: Runnable
    spin: float = SPINS[0]
    """The microseconds for which the GPU spins while the host changes inputs and queues a call."""

    def warm_up(self, calls: int) -> None:
        """Make untimed calls, each as a sample, and keep none of their results."""
        for _ in range(calls):
            self.host_sample(1)
        self.rotation.report()

    def host_sample(self, calls: int) -> float:
        """Return the mean microseconds of a burst of calls on new inputs."""
        self.rotation.renew()
        sample = host_time(self.call, calls)
        self.rotation.keep()
        return sample

    def gpu_sample(self, flush: torch.Tensor) -> float:
        """Return the microseconds of one run; repeat it if the GPU began before all was queued.

        The work before and after the run is queued on the timed stream but not timed.
        """
        while True:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(int(self.spin * CYCLES_PER_MICROSECOND))
            self.rotation.renew()
            with torch.set_grad_enabled(True):
                flush.zero_()
                start.record()
                self.call()
                end.record()
            late = start.query()
            self.rotation.keep()
            end.synchronize()
            if not late or self.spin == SPINS[1]:
                return float(start.elapsed_time(end)) * 1e3
            self.spin = min(2 * self.spin, SPINS[1])


def host_time(run: Runnable, calls: int) -> float:
    """Return the mean microseconds until a call of a burst has returned; the GPU is idle before."""
    backend.synchronize()
    with torch.set_grad_enabled(True):
        start = time.perf_counter_ns()
        for _ in range(calls):
            run()
        return (time.perf_counter_ns() - start) / 1e3 / calls


def twice_the_l2() -> torch.Tensor:
    """Return a buffer to overwrite between two calls, so that the L2 cache is cold for a call."""
    if not torch.cuda.is_available():
        return torch.empty(0)
    size = torch.cuda.get_device_properties().L2_cache_size
    return torch.empty(2 * size, dtype=torch.uint8, device="cuda")


def limit(run: Runnable) -> TimedCallable:
    """Return a timed callable of a call without inputs that change, such as a copy."""
    rotation = Rotation([TimedCall(run)])
    return TimedCallable(rotation, rotation.run)


class Clock:
    """The timed callables of one process: its calls, and the limits in eager's process."""

    def __init__(self, rotation: Rotation, limits: Limits, name: str = "solution") -> None:
        """Warm up: make a few calls, first with all results alive, then as in samples.

        The limits are further timed callables, whose memory is allocated only during their rounds;
        the calls have the name among them.
        """
        self.rotation, self._limits = rotation, limits
        self._held: list[object] = []
        """The results of the latest run that did not wait; to free them is no part of a call."""
        self.callables = {name: TimedCallable(rotation, rotation.run)}
        self._flush = twice_the_l2()

        def cold_call() -> None:
            rotation.run()
            backend.synchronize()
            rotation.forget()

        for _ in range(COLD_CALLS):
            microseconds = host_time(cold_call, 1)
        calls = max(int(1e6 * LONGEST_WARM_UP / microseconds), 1)
        if rotation.slots:
            rotation.run_at_once(calls)
            rotation.refuse_shared()
            rotation.forget()
            give_back()  # torch caches the memory of several calls by now
        self.callables[name].warm_up(min(WARM_UP_CALLS, calls))
        gc.collect()
        backend.synchronize()

    def ready(self, name: str) -> bool:
        """Prepare a timed callable: allocate a limit, or capture forward as the CUDA graph `graph`.

        Return whether it can be timed: a capture may fail, and needs a GPU.
        """
        self._held.clear()
        if name in self.callables:
            return True
        if name != "graph":
            self.callables[name] = limit(self._limits[name]())
        elif torch.cuda.is_available() and self.rotation.capture():
            self.callables[name] = TimedCallable(self.rotation, self.rotation.replay)
        else:
            return False
        self.callables[name].warm_up(COLD_CALLS)
        return True

    def _free_limits(self) -> None:
        for name in self._limits:
            self.callables.pop(name, None)

    def take_samples(self, name: str, clock: ByClock, rounds: int, burst: int = 1) -> list[float]:
        """Take `rounds` samples of one timed callable by one clock; see `TakeSamples`."""
        self.ready(name)
        timed_callable = self.callables[name]
        if clock == "host":  # the processor slept after the last round
            end = time.perf_counter_ns() + WAKING
            while time.perf_counter_ns() < end:
                timed_callable.host_sample(1)
        samples = [
            timed_callable.gpu_sample(self._flush)
            if clock == "gpu"
            # a random number, so that a solution cannot recognize the last call of a burst
            else timed_callable.host_sample(burst // 2 + 1 + below(burst - burst // 2))
            for _ in range(rounds)
        ]
        self.rotation.forget()
        self._free_limits()
        give_back(SCARCE)  # and wait: the harness reads the kept results in another CUDA context
        return [round(sample, 2) for sample in samples]

    def run(
        self, name: str, rounds: int, renew: bool, call: bool, wait: bool, same: bool = False
    ) -> None:
        """Make the calls of a timed callable round after round; see `RunCalls`."""
        self.ready(name)
        timed_callable = self.callables[name]
        rotation, make_call = timed_callable.rotation, timed_callable.call
        prepare = rotation.renew if renew else rotation.forget
        if same:
            rotation.stay()
        for _ in range(rounds):
            prepare()
            if call:
                for _ in rotation.shifts:
                    make_call()
                if wait:
                    rotation.keep(in_passing=True)
                else:
                    self._held.append(rotation.alive)
        rotation.forget()  # the time of a run that waits includes freeing the results
        self._free_limits()
        if wait:
            backend.synchronize()


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


@functools.cache
def probe(clock: ByClock) -> Callable[[int], list[float]]:
    """Return a function that times fixed work, which shows whether the machine is disturbed.

    It takes the given number of samples: of a copy in GPU time, or of a launch in host time.
    """
    zeros = torch.zeros(8, device="cuda" if torch.cuda.is_available() else "cpu")
    work = limit(copy(PROBE_BYTES) if clock == "gpu" else lambda: zeros + 1)
    work.warm_up(WARM_UP_CALLS)
    flush = twice_the_l2()
    if clock == "gpu":
        return lambda rounds: [work.gpu_sample(flush) for _ in range(rounds)]
    return lambda rounds: [work.host_sample(PROBE_BURST) for _ in range(rounds)]


# --- requests -------------------------------------------------------------------------------------


def begin_timing(session: Session, request: BeginTiming) -> Reply:
    """Warm up the calls and keep their clock for the requests that follow."""
    WATCH.begin_call({})  # inputs may now lie where a graded call's lay
    session.clocks.pop(request.backward, None)
    # the result of a peer's `prepare` would not follow a change, and its call may overwrite it
    results = () if session.solution.prepare else tuple(map(session.tensor, request.results))
    slots = request.calls[0].slots.items() if results else ()
    originals = {name: session.elements(slot).repeat(2) for name, slot in slots}
    calls = [timed_call(session, call, originals) for call in request.calls]
    limits: Limits = {}
    if wanted := request.limits:
        bytes_, products, dtype = wanted.copy_bytes, wanted.products, getattr(torch, wanted.dtype)
        limits = {"copy": lambda: copy(bytes_), "dense": lambda: dense(products, dtype)}

    rotation = Rotation(calls, request.backward, session.check_timed, results)
    session.clocks[request.backward] = Clock(rotation, limits, "eager" if limits else "solution")
    return {}


def timed_call(
    session: Session, call: Arguments, originals: Mapping[str, torch.Tensor]
) -> TimedCall:
    """Return one call of the rotation, whose inputs change if they have an original."""
    session.calls = {}  # frees the graded calls
    inputs, options = session.bind_timed(call)
    upstream = {name: session.tensor(slot) for name, slot in call.upstream.items()}
    tensors = {**inputs, **options, **upstream}
    changing = [
        Changing(tensors[name], session.elements(call.slots[name]), originals[name], unit)
        for name, unit in call.changing.items()
        if name in originals
    ]
    forward = session.solution.call(inputs.values(), options)
    wanted = [inputs[name] for name in call.differentiable]
    return TimedCall(forward, wanted, (*upstream.values(),), changing)


def take_samples(session: Session, request: TakeSamples) -> Reply:
    """Take samples of timed callables in the given order, with samples of the probe in between."""
    samples, probes, report = {}, [], Reply()
    if request.probes:  # the processor may have slept
        probes = [probe(request.clock)(PROBE_WAKING + request.probes)[PROBE_WAKING:]]
    for name in request.names:
        clock = session.clocks[request.backward]
        samples[name] = clock.take_samples(name, request.clock, request.rounds, request.burst)
        report = clock.rotation.report()
        if request.probes:
            probes.append(probe(request.clock)(request.probes))
    return {"samples": samples, "probes": probes} | report


def run_calls(session: Session, request: RunCalls) -> Reply:
    """Make calls round after round; see `Clock.run`. Without rounds, only get ready and wait."""
    clock, report = session.clocks.get(request.backward), Reply()
    if clock and request.rounds:
        how = request.renew, request.call, request.wait, request.same
        clock.run(request.name, request.rounds, *how)
        return clock.rotation.report()
    if clock and request.name:
        report = {"ready": clock.ready(request.name)}
    backend.synchronize()
    return report
