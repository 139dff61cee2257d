"""Timed calls in a solution's or in eager's process: rounds of samples, long runs and a trace."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from common import wire
from common.sandbox import backend, clock
from common.sandbox.clock import Clock, Limits
from common.sandbox.rotation import Changing, Rotation, TimedCall
from common.sandbox.session import Session
from common.wire import Arguments, Reply

WAKING = 4
"""The number of discarded probe samples, whose launches take half a millisecond in all."""
TRACED = 3
"""The number of calls in a trace. Another call runs before it, since the first may compile."""


def begin_timing(session: Session, request: wire.BeginTiming) -> Reply:
    """Warm up the calls and keep their clock for the requests that follow.

    Raises:
        Refused: TAMPERED, if results that are alive at once lie in the same memory.
    """
    backend.begin_watch({}, backwards=False)  # inputs may now lie where a graded call's lay
    session.clocks.pop(request.backward, None)
    # the result of a peer's `prepare` would not follow a change, and its call may overwrite it
    results = () if session.prepare else tuple(map(session.tensor, request.results))
    slots = request.calls[0].slots.items() if results else ()
    originals = {name: session.elements(slot).repeat(2) for name, slot in slots}
    calls = [timed_call(session, call, originals) for call in request.calls]
    limits: Limits = {}
    if wanted := request.limits:
        limits = {
            "copy": functools.partial(clock.copy, wanted.copy_bytes),
            "dense": functools.partial(clock.dense, wanted.products, getattr(torch, wanted.dtype)),
        }

    def check(output: torch.Tensor) -> None:
        session.seal.check()  # a solution may restore a replaced function before the end
        session.check_output(output)

    rotation = Rotation(calls, request.backward, check, results)
    made = Clock(rotation, request.backward, limits, "eager" if limits else "solution")
    session.clocks[request.backward] = made
    return {"peak_memory": rotation.peak_memory(), "slow": made.slow}


def timed_call(
    session: Session, call: Arguments, originals: Mapping[str, torch.Tensor]
) -> TimedCall:
    """Return one call of the rotation, whose inputs change if they have an original."""
    bound, tensors = session.prepared(call)
    changing = [
        Changing(tensors[name], session.elements(call.slots[name]), originals[name], unit)
        for name, unit in call.changing.items()
        if name in originals
    ]
    return TimedCall(*bound, changing)


def take_samples(session: Session, request: wire.TakeSamples) -> Reply:
    """Take samples of timed callables in the given order, with samples of the probe in between."""
    samples, probes, report = {}, [], Reply()
    if request.probes:  # the processor may have slept
        probes = [session.probes.take(request.clock, WAKING + request.probes)[WAKING:]]
    for name in request.names:
        timing = session.clocks[request.backward]
        samples[name] = timing.take_samples(name, request.clock, request.rounds, request.burst)
        report = _report(timing.rotation)
        if request.probes:
            probes.append(session.probes.take(request.clock, request.probes))
    return {"samples": samples, "probes": probes} | report


def run(session: Session, request: wire.RunCalls) -> Reply:
    """Make calls round after round; see `Clock.run`. Without rounds, only get ready and wait."""
    timing, report = session.clocks.get(request.backward), Reply()
    if timing and request.rounds:
        timing.run(request.name, request.rounds, request.renew, request.call, request.wait)
        return _report(timing.rotation)
    if timing and request.name:
        report = {"ready": timing.ready(request.name)}
    backend.synchronize()
    return report


def _report(rotation: Rotation) -> Reply:
    return {"kept": rotation.delivered(), "shifts": rotation.shifts}


def trace_calls(session: Session, request: wire.Trace) -> Reply:
    """Return as `trace` a Chrome trace of TRACED calls, as JSON text."""
    bound, _ = session.prepared(request.call)
    rotation = Rotation([TimedCall(*bound)], request.backward)
    rotation.run()
    rotation.forget()
    backend.synchronize()
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * backend.ON_GPU]
    with profile(activities=activities) as profiled:
        for _ in range(TRACED):
            rotation.run()
            rotation.forget()
        backend.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        return {"trace": path.read_text()}
