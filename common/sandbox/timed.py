"""Timed calls, in a solution's process or in eager's: turns of samples, long runs, and a trace."""

from __future__ import annotations

import functools
from typing import Any

import torch

from common.sandbox import contestants, trace
from common.sandbox.backend import INTERPRETED
from common.sandbox.clock import Clock, Probes
from common.sandbox.rotation import Changing, Rotation, TimedCall
from common.sandbox.session import Session
from common.sandbox.tunables import force
from common.spec import ByClock
from common.wire import Reply

WAKING = 4
"""Samples of the probe that do not count, half a millisecond of launches or a copy each."""


def begin_timing(
    session: Session,
    calls: list[Reply],
    results: list[list[Reply]],
    backward: bool,
    limits: Reply | None = None,
    choices: list[Any] | None = None,
    beside: bool = False,
) -> Reply:
    """Warm up the calls and keep the clock for the requests that follow.

    Args:
        session: The session.
        calls: The inputs of the rotation, all of one shape.
        results: For each call the slots that its results may be kept in, the output's first; empty
            if they are not to be kept.
        backward: Time forward with backward instead of forward alone.
        limits: `copy_bytes`, `products` and `dtype` of the limits to time beside the calls.
        choices: Configurations to force on the solution's kernels; see `tunables.force`.
        beside: Keep the clock of the other direction.

    Raises:
        Refused: TAMPERED, where results that live at the same time lie in the same memory.
    """
    if choices is not None:
        force(session, choices)
    if not beside:  # its copies of the inputs would lie beside those of the next one
        session.clocks = {}
    rotated = [_timed_call(session, call, kept) for call, kept in zip(calls, results, strict=True)]
    ours = Rotation(rotated, backward, functools.partial(check_sample, session))
    session.clocks[backward] = Clock(ours, backward, _limits(**limits) if limits else {})
    session.hold()
    return {}


def _timed_call(session: Session, call: Reply, results: list[Reply]) -> TimedCall:
    """Return one input of the rotation.

    The inputs of a prepared call never change and its results are not kept: the result of a peer's
    preparation would not follow the change, and the call may write over the preparation's.
    """
    forward, wanted, upstream = session.prepared(call, session.function, session.prepare)
    if session.prepare or not results:
        return TimedCall(forward, wanted, upstream)
    tensors = {**forward.keywords, "upstream": upstream}
    slots = {**call["tensors"], "upstream": call["upstream"]}
    changing = [
        Changing(name, tensors[name], session.elements(slots[name]), unit)
        for name, unit in call["changing"].items()
    ]
    kept = tuple(session.tensor(slot) for slot in results)
    return TimedCall(forward, wanted, upstream, changing, kept)


def _limits(copy_bytes: int, products: list[Any], dtype: str) -> dict[str, contestants.Run]:
    if not torch.cuda.is_available():
        return {}
    limits = {"copy": contestants.copy(copy_bytes)}
    if products:
        limits["dense"] = contestants.dense(products, getattr(torch, dtype))
    return limits


def check_sample(session: Session, output: torch.Tensor) -> None:
    """Check for tampering and check the output after one sample.

    Both happen at every sample: a function that was replaced may be back in place at the end.
    """
    session.hold()
    session.check_output(output)


def take_turn(
    session: Session, name: str, clock: ByClock, rounds: int, burst: int, backward: bool
) -> Reply:
    """Take samples of one contestant; see `Clock.turn`.

    Returns:
        `samples` in microseconds, and as `kept` the call whose results lie in its slots and the
        shift of its inputs; None where no results are kept.
    """
    timed = session.clocks[backward]
    held = (*session.held(), *timed.held())
    samples = timed.turn(name, clock, rounds, burst)
    session.hold(*held)
    return {"samples": samples, "kept": timed.ours.delivered()}


def take_turns(
    session: Session,
    names: list[str],
    clock: ByClock,
    rounds: int,
    burst: int,
    look: int,
    backward: bool,
) -> Reply:
    """Take samples of several contestants, in their order, with the probe between their turns.

    Returns:
        `samples` by name, and `probes`: `look` samples of the probe before the first turn and
        after each; none where `look` is 0.
    """
    samples, probes = {}, [_probe(session, clock, look)] if look else []
    for name in names:
        turn = take_turn(session, name, clock, rounds, burst, backward)
        samples[name] = turn["samples"]
        if look:
            probes.append(_probes(session).take(clock, look))
    return {"samples": samples, "probes": probes}


def capture(session: Session, backward: bool) -> Reply:
    """Return as `captured` whether the replay of forward's CUDA graph is a contestant now."""
    return {"captured": session.clocks[backward].capture()}


def run_on(
    session: Session, name: str, rounds: int, renew: bool, run: bool, wait: bool, backward: bool
) -> Reply:
    """Make calls round after round; see `Clock.run_on`, and `take_turn` for `kept`."""
    timed = session.clocks[backward]
    held = (*session.held(), *timed.held())
    timed.run_on(name, rounds, renew, run, wait)
    session.hold(*held)
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


def trace_calls(session: Session, call: Reply, backward: bool) -> Reply:
    """Return a Chrome trace of a few calls, as JSON text."""
    prepared = session.prepared(call, session.function, session.prepare)
    run = contestants.as_run(prepared, backward)
    return {"trace": trace.chrome_trace(run, cuda=not INTERPRETED)}
