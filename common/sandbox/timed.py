"""Timed calls in a solution's or in eager's process: rounds of samples, long runs and a trace."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from common.sandbox import backend, timed_callables
from common.sandbox.clock import Clock, Limits, Probes
from common.sandbox.rotation import Changing, Rotation, TimedCall, peak_memory
from common.sandbox.session import Session
from common.spec import ByClock
from common.wire import Arguments, Reply, TensorSlot

WAKING = 4
"""The number of discarded probe samples, whose launches take half a millisecond in all."""


def begin_timing(
    session: Session,
    calls: list[Arguments],
    results: list[TensorSlot],
    backward: bool,
    limits: Reply | None = None,
    keep_other: bool = False,
) -> Reply:
    """Warm up the calls and keep the clock for the requests that follow.

    Args:
        session: The session.
        calls: The inputs of the rotation, all of one shape.
        results: The slots for the kept results of a call, the output's first; empty to keep none.
        backward: Time forward with backward instead of only forward.
        limits: `copy_bytes`, `products` and `dtype` of the limits to time besides the calls.
        keep_other: Keep the clock of the other direction.

    Returns:
        As `slow`, whether a call takes more than half of the seconds of a warm-up. As
        `peak_memory`, the bytes that a call allocates beyond inputs and results; None on a CPU.
        Memory that native code allocates through CUDA, and memory that the solution keeps from an
        earlier call, are excluded. This process could forge both values, as it could its times;
        the harness does not measure them again.

    Raises:
        Refused: TAMPERED, if results that are alive at once lie in the same memory.
    """
    backend.begin_watch({}, backwards=False)  # inputs may now lie where a graded call's lay
    if not keep_other:  # otherwise both clocks' copies of the inputs would take memory
        session.clocks = {}
    kept = [] if session.prepare else results
    timed_calls = [_timed_call(session, call, changes=bool(kept)) for call in calls]
    slots = tuple(session.tensor(slot) for slot in kept)
    # only eager's process has limits, and it runs no solution's code
    check = session.check_output if limits else functools.partial(check_sample, session)
    rotation = Rotation(timed_calls, backward, check, slots)
    clock = Clock(rotation, backward, _limits(**limits) if limits else {})
    session.clocks[backward] = clock
    return {"peak_memory": peak_memory(rotation), "slow": clock.slow}


def _timed_call(session: Session, call: Arguments, changes: bool) -> TimedCall:
    """Return one call of the rotation.

    The inputs of a prepared call never change and its results are not kept, since the result of a
    peer's `prepare` would not follow the change, and the call may overwrite that result.
    """
    bound, tensors = session.prepared(call, session.function, session.prepare)
    if not changes:
        return TimedCall(*bound)
    slots = {**call.tensors, "upstream": call.grad_output}
    changing = [
        Changing(tensors[name], session.elements(slots[name]), unit)
        for name, unit in call.changing.items()
    ]
    return TimedCall(*bound, changing)


def _limits(copy_bytes: int, products: list[Any], dtype: str) -> Limits:
    if not torch.cuda.is_available():
        return {}
    limits = {"copy": functools.partial(timed_callables.copy, copy_bytes)}
    if products:
        dense = functools.partial(timed_callables.dense, products, getattr(torch, dtype))
        limits["dense"] = dense
    return limits


def check_sample(session: Session, output: torch.Tensor) -> None:
    """Check for tampering and check the output after one sample.

    Every sample is checked, since a solution may restore a replaced function before the end.
    """
    session.seal.check()
    session.check_output(output)


def get_ready(session: Session, name: str, backward: bool) -> Reply:
    """Warm up and wait for the GPU, so that the next request runs only the timed callable.

    See `Clock.get_ready`.
    """
    session.clocks[backward].get_ready(name)
    backend.synchronize()
    return {}


def give_back(session: Session, backward: bool) -> Reply:
    """Free results, limits and cached memory; see `Clock.give_back`."""
    session.clocks[backward].give_back()
    return {}


def shifts(session: Session, backward: bool) -> Reply:
    """Return as `shifts` the total shift of each call's inputs; see `rotation.Shifts`."""
    return {"shifts": session.clocks[backward].ours.shifts.totals}


def take_samples(
    session: Session,
    names: list[str],
    clock: ByClock,
    rounds: int,
    burst: int,
    look: int,
    backward: bool,
) -> Reply:
    """Take samples of timed callables in the given order, with samples of the probe in between.

    See `Clock.take_samples`.

    Returns:
        As `samples`, microseconds by name. As `probes`, `look` samples of the probe before the
        first round and after each round; empty if `look` is 0. As `kept`, the call of the last
        round whose results lie in the slots, with the shift of its inputs; None if no results are
        kept.
    """
    session_clock, kept = session.clocks[backward], None
    samples, probes = {}, [_take_probe(session, clock, look)] if look else []
    for name in names:
        samples[name] = session_clock.take_samples(name, clock, rounds, burst)
        kept = session_clock.ours.delivered()
        if look:
            probes.append(_probes(session).take(clock, look))
    return {"samples": samples, "probes": probes, "kept": kept}


def capture(session: Session, backward: bool) -> Reply:
    """Capture forward as CUDA graphs for replay; return as `captured` whether this succeeds."""
    return {"captured": session.clocks[backward].capture()}


def throughput_run(
    session: Session,
    name: str,
    rounds: int,
    renew: bool,
    run: bool,
    wait: bool,
    low_memory: bool,
    backward: bool,
) -> Reply:
    """Make calls round after round; see `Clock.throughput_run`, and `take_samples` for `kept`."""
    clock = session.clocks[backward]
    clock.throughput_run(name, rounds, renew, run, wait, low_memory)
    return {"kept": clock.ours.delivered()}


def probe(session: Session, clock: ByClock, rounds: int) -> Reply:
    """Return as `samples` the probe's microseconds; see `Probes`."""
    return {"samples": _take_probe(session, clock, rounds)}


def _take_probe(session: Session, clock: ByClock, rounds: int) -> list[float]:
    """Return samples of the probe; discard the first ones, since the processor may have slept."""
    return _probes(session).take(clock, WAKING + rounds)[WAKING:]


def _probes(session: Session) -> Probes:
    if session.probes is None:
        session.probes = Probes()
    return session.probes


def trace_calls(session: Session, call: Arguments, backward: bool) -> Reply:
    """Return a Chrome trace of a few calls, as JSON text."""
    prepared, _ = session.prepared(call, session.function, session.prepare)
    run = timed_callables.as_run(prepared, backward)
    return {"trace": chrome_trace(run)}


# --- a trace --------------------------------------------------------------------------------------

TRACED = 3
"""The number of calls in the trace. Another call runs before it, since the first may compile."""


def chrome_trace(run: Callable[[], object]) -> str:
    """Return the trace of `TRACED` calls as JSON text."""
    run()
    backend.synchronize()
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * backend.ON_GPU]
    with profile(activities=activities) as profiled:
        for _ in range(TRACED):
            run()
        backend.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        return path.read_text()
