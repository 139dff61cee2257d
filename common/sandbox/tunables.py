"""The configurations that a solution leaves to the harness's search; see docs/tuning.md."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from common.arena import dtype_name
from common.sandbox import graded
from common.sandbox.failures import judge
from common.sandbox.session import Call, Session
from common.wire import Arguments, Reply


def tunable(session: Session) -> Reply:
    """Return the kernels whose configuration can be chosen: name, default and the space of each."""
    force(session, [])
    kernels = [
        {"name": tuned.name, "default": tuned.default, "space": list(tuned.space)}
        for tuned in _tuned(session)
    ]
    return {"kernels": kernels}


def force(session: Session, choices: list[Any]) -> Reply:
    """Make each kernel take the configuration chosen for a shape, and its default for any other.

    Args:
        session: The solution's session.
        choices: `[kernel, tokens, widths, dtype, configuration]` each, such as
            `["linear", 4096, [1024, 4096], "bfloat16", {"block": 64}]`.
    """
    for tuned in _tuned(session):
        tuned.asked.clear()
        tuned.forced = {
            (tokens, tuple(widths), getattr(torch, dtype)): config
            for kernel, tokens, widths, dtype, config in choices
            if kernel == tuned.name
        }
    return {}


def lookups(session: Session, call: Arguments, choices: list[Any]) -> Reply:
    """Return the shapes for which one call asks its kernels' configurations, by direction.

    Returns:
        `asked`, which maps `forward` and `backward` to `[kernel, tokens, widths, dtype]` each; with
        a verdict and a reason where the call fails.
    """
    asked: Reply = {}
    try:
        run, wanted, grad_output = session.prepared(call, session.function)
        output = _lookups(session, "forward", run, choices, asked)
        if output.requires_grad:
            gradients = functools.partial(torch.autograd.grad, output, wanted, grad_output)
            _lookups(session, "backward", gradients, choices, asked)
    except Exception as error:
        return {"asked": asked} | judge(error)
    return {"asked": asked}


def _lookups(
    session: Session, direction: str, run: Callable[[], Any], choices: list[Any], asked: Reply
) -> Any:
    """Run one direction and note its lookups in `asked`, also where it fails."""
    force(session, choices)
    try:
        with graded.checks(session, Call({}, poison=0.0, backwards=False)):
            return run()
    finally:
        asked[direction] = [
            [tuned.name, int(tokens), [int(width) for width in widths], dtype_name(dtype)]
            for tuned in _tuned(session)
            for tokens, widths, dtype, *_ in tuned.asked
        ]


def _tuned(session: Session) -> tuple[Any, ...]:
    return tuple(getattr(session.module, "TUNED", ()))
