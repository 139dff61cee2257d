"""The kernel configurations that the harness tunes for a solution; see docs/tuning.md."""

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
    """Return the kernels whose configuration can be chosen, with name, default and search space."""
    force(session, [])
    kernels = [
        {"name": tuned.name, "default": tuned.default, "space": list(tuned.space)}
        for tuned in _tuned(session)
    ]
    return {"kernels": kernels}


def force(session: Session, choices: list[Any]) -> Reply:
    """Force the chosen configurations; a kernel uses its default for any other shape.

    Args:
        session: The solution's session.
        choices: Items `[kernel, tokens, widths, dtype, configuration]`, for example
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
    """Return the shapes for which one call looks up its kernels' configurations.

    Returns:
        As `asked`, lists of `[kernel, tokens, widths, dtype]` under `forward` and `backward`. If
        the call fails, also a verdict and a reason.
    """
    shapes: Reply = {}
    try:
        (forward, wanted, grad_output), _ = session.prepared(call, session.function)
        output = _record_lookups(session, "forward", forward, choices, shapes)
        if output.requires_grad:
            backward = functools.partial(torch.autograd.grad, output, wanted, grad_output)
            _record_lookups(session, "backward", backward, choices, shapes)
    except Exception as error:
        return {"asked": shapes} | judge(error)
    return {"asked": shapes}


def _record_lookups(
    session: Session, direction: str, run: Callable[[], Any], choices: list[Any], shapes: Reply
) -> Any:
    """Run one direction and record its lookups in `shapes`, even if it fails."""
    force(session, choices)
    try:
        with graded.checks(session, Call({}, poison=0.0, backwards=False)):
            return run()
    finally:
        shapes[direction] = [
            [tuned.name, int(tokens), [int(width) for width in widths], dtype_name(dtype)]
            for tuned in _tuned(session)
            for tokens, widths, dtype, *_ in tuned.asked
        ]


def _tuned(session: Session) -> tuple[Any, ...]:
    return tuple(getattr(session.module, "TUNED", ()))
