"""Timed calls, in a solution's process or in eager's: rounds of samples, long runs, and a trace."""

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
from common.sandbox.tunables import force
from common.spec import ByClock
from common.wire import Arguments, Reply, TensorSlot

WAKING = 4
"""Samples of the probe that do not count, half a millisecond of launches or a copy each."""


def begin_timing(
    session: Session,
    calls: list[Arguments],
    results: list[TensorSlot],
    backward: bool,
    limits: Reply | None = None,
    choices: list[Any] | None = None,
    keep_other: bool = False,
) -> Reply:
    """Warm up the calls and keep the clock for the requests that follow.

    Args:
        session: The session.
        calls: The inputs of the rotation, all of one shape.
        results: The slots that the results of a call may be kept in, the output's first; empty if
            none are to be kept.
        backward: Time forward with backward instead of forward alone.
        limits: `copy_bytes`, `products` and `dtype` of the limits to time beside the calls.
        choices: Configurations to force on the solution's kernels; see `tunables.force`.
        keep_other: Keep the clock of the other direction.

    Returns:
        As `slow` whether a call takes most of the seconds of a warm-up; as `peak_memory` the bytes
        that a call takes beyond inputs and results, forward's or those of forward with backward;
        None on a CPU. Both are this process's own word, as times are, and nothing holds them
        against another measurement. Memory that native code takes from CUDA itself, and what the
        solution has held since an earlier call, are not in it.

    Raises:
        Refused: TAMPERED, where results that live at the same time lie in the same memory.
    """
    backend.begin_watch({}, backwards=False)  # inputs now lie where a graded call's lay
    if choices is not None:
        force(session, choices)
    if not keep_other:  # its copies of the inputs would lie beside those of the next one
        session.clocks = {}
    kept = [] if session.prepare else results
    rotated = [_timed_call(session, call, changes=bool(kept)) for call in calls]
    slots = tuple(session.tensor(slot) for slot in kept)
    # eager's process, which alone has limits, runs no solution's code
    check = session.check_output if limits else functools.partial(check_sample, session)
    ours = Rotation(rotated, backward, check, slots)
    clock = session.clocks[backward] = Clock(ours, backward, _limits(**limits) if limits else {})
    return {"peak_memory": peak_memory(ours), "slow": clock.slow}


def _timed_call(session: Session, call: Arguments, changes: bool) -> TimedCall:
    """Return one input of the rotation.

    The inputs of a prepared call never change and its results are not kept: the result of a peer's
    preparation would not follow the change, and the call may write over the preparation's.
    """
    forward, wanted, grad_output = session.prepared(call, session.function, session.prepare)
    if not changes:
        return TimedCall(forward, wanted, grad_output)
    inputs = [name for name in call.tensors if name not in call.optional]
    by_name = dict(zip(inputs, forward.args, strict=True))
    tensors = {**by_name, **forward.keywords, "upstream": grad_output}
    slots = {**call.tensors, "upstream": call.grad_output}
    changing = [
        Changing(tensors[name], session.elements(slots[name]), unit)
        for name, unit in call.changing.items()
    ]
    return TimedCall(forward, wanted, grad_output, changing)


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

    Both happen at every sample: a function that was replaced may be back in place at the end.
    """
    session.seal.check()
    session.check_output(output)


def get_ready(session: Session, name: str, backward: bool) -> Reply:
    """Wait for the GPU and warm up, so that the next request is the timed callable's alone.

    See `Clock.get_ready`.
    """
    timed = session.clocks[backward]
    timed.get_ready(name)
    backend.synchronize()
    return {}


def give_back(session: Session, backward: bool) -> Reply:
    """Free results, limits and caches; the next calls find none. See `Clock.give_back`."""
    session.clocks[backward].give_back()
    return {}


def shifts(session: Session, backward: bool) -> Reply:
    """Return as `shifts` how far the inputs of each call have moved; see `rotation.Shifts`."""
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
    """Take samples of timed callables, in their order, with the probe between their rounds.

    See `Clock.take_samples`.

    Returns:
        `samples` in microseconds by name; as `probes`, `look` samples of the probe before the first
        round and after each, none where `look` is 0; and as `kept` the call of the last round whose
        results lie in the slots and the shift of its inputs, None where no results are kept.
    """
    timed, kept = session.clocks[backward], None
    samples, probes = {}, [_probe(session, clock, look)] if look else []
    for name in names:
        samples[name] = timed.take_samples(name, clock, rounds, burst)
        kept = timed.ours.delivered()
        if look:
            probes.append(_probes(session).take(clock, look))
    return {"samples": samples, "probes": probes, "kept": kept}


def capture(session: Session, backward: bool) -> Reply:
    """Return as `captured` whether the replay of forward's CUDA graph is a timed callable now."""
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
    timed = session.clocks[backward]
    timed.throughput_run(name, rounds, renew, run, wait, low_memory)
    return {"kept": timed.ours.delivered()}


def probe(session: Session, clock: ByClock, rounds: int) -> Reply:
    """Return `samples` in microseconds of the probe; see `Probes`."""
    return {"samples": _probe(session, clock, rounds)}


def _probe(session: Session, clock: ByClock, rounds: int) -> list[float]:
    """Return samples of the probe after some that do not count: the processor may have slept."""
    return _probes(session).take(clock, WAKING + rounds)[WAKING:]


def _probes(session: Session) -> Probes:
    if session.probes is None:
        session.probes = Probes()
    return session.probes


def trace_calls(session: Session, call: Arguments, backward: bool) -> Reply:
    """Return a Chrome trace of a few calls, as JSON text."""
    prepared = session.prepared(call, session.function, session.prepare)
    run = timed_callables.as_run(prepared, backward)
    return {"trace": chrome_trace(run)}


# --- a trace --------------------------------------------------------------------------------------

TRACED = 3
"""Calls in the trace. One more runs before them, since a first call may compile."""


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
