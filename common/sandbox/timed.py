"""Timed calls, in a solution's process: samples beside eager and the limits, and a trace."""

from __future__ import annotations

import functools
from typing import Any

import torch

from common.sandbox import clock, contestants, trace
from common.sandbox.backend import INTERPRETED
from common.sandbox.failures import Refused
from common.sandbox.rotation import Rotation, TimedCall
from common.sandbox.session import Session
from common.sandbox.tunables import force
from common.wire import Reply


def time_solution(
    session: Session, calls: list[Reply], results: list[Reply], baseline: Reply, **how: Any
) -> Reply:
    """Take samples of the solution, of eager and of the limits in turn.

    Args:
        session: The solution's session.
        calls: The inputs of the rotation, all of one shape.
        results: For each call the slots that its results may be kept in, by name.
        baseline: The inputs of eager.
        how: Further arguments of `clock.take_samples`.

    Returns:
        The samples of `clock.take_samples`, and as `kept` which call's results lie in its slots and
        how far its inputs were shifted.

    Raises:
        Refused: TAMPERED, where results that live at the same time lie in the same memory; or the
            verdict of a sample's output.
    """
    assert session.op is not None
    rotated = [timed_call(session, *each) for each in zip(calls, results, strict=True)]
    ours = Rotation(rotated, how["backward"], functools.partial(check_sample, session))
    reference = TimedCall(*session.prepared(baseline, session.op.reference), memory=[], results={})
    eager = Rotation([reference], how["backward"])
    samples = clock.take_samples(ours, eager, **how)
    session.hold()
    if ours.shared and not session.prepare:
        raise Refused("TAMPERED", "the results of several calls lie in the same memory")
    return samples | {"kept": ours.kept}


def timed_call(session: Session, call: Reply, results: Reply) -> TimedCall:
    """Return one input of the rotation.

    The inputs of a prepared call never change and its results are not kept: what a peer prepared
    would not follow the change, and the call may write over what it was made of.
    """
    timed = session.prepared(call, session.function, session.prepare)
    if session.prepare:
        return TimedCall(*timed, memory=[], results={})
    return TimedCall(
        *timed,
        memory=[session.elements(slot) for slot in changing(call)],
        results={name: session.tensor(slot) for name, slot in results.items()},
    )


def changing(call: Reply) -> list[Reply]:
    """Return the slots whose elements move between timed calls, the upstream gradient's too."""
    return [*(call["tensors"][name] for name in call["changing"]), call["upstream"]]


def check_sample(session: Session, output: torch.Tensor) -> None:
    """Check for tampering and check the output after one sample.

    Both happen at every sample: what was replaced may be back in place at the end.
    """
    session.hold()
    session.check_output(output)


def time_forced(session: Session, calls: list[Reply], choices: list[Any], **how: Any) -> Reply:
    """Take samples of the solution alone, with chosen configurations of its kernels.

    Args:
        session: The solution's session.
        calls: The inputs, taken in turn.
        choices: The configurations; see `tunables.force`.
        how: Further arguments of `clock.take_samples_alone`.
    """
    force(session, choices)
    ours = [session.prepared(call, session.function) for call in calls]
    return {"gpu": clock.take_samples_alone(ours, **how)}


def trace_calls(session: Session, call: Reply, backward: bool) -> Reply:
    """Return a Chrome trace of a few calls, as JSON text."""
    prepared = session.prepared(call, session.function, session.prepare)
    run = contestants.as_run(prepared, backward)
    return {"trace": trace.chrome_trace(run, cuda=not INTERPRETED)}
