"""One board case at its true shape, counted in a solution's process; a request of the harness."""

from __future__ import annotations

import ctypes
import functools
import inspect
import random
import zlib
from collections.abc import Callable
from typing import Any

import torch

from common.ops._draw import draw
from common.sandbox import contract
from common.sandbox.counted.launches import Launches
from common.sandbox.counted.operators import Operators
from common.sandbox.failures import judge
from common.sandbox.session import Session
from common.spec import Case, Op
from common.wire import Reply


def count(session: Session, case: str) -> Reply:
    """Count forward and backward of the board case with this name, at its true shape.

    Returns:
        By direction the steps of its work, operators and launches in order, those of forward again
        in `backward`; with a verdict and its reason where the solution fails or does not support
        the case.
    """
    op = session.op
    assert op is not None
    found = next(each for each in op.cases("board") if each.name == case)
    ctypes.CDLL(None).mallopt(-6, 0)  # M_PERTURB: it would touch all memory
    counted: Reply = {}
    try:
        _count(session, op, found, counted)
    except Exception as error:
        counted |= judge(error)
    return counted


def _count(session: Session, op: Op[Any], case: Case, counted: Reply) -> None:
    seed = zlib.crc32(case.name.encode())
    with Operators(lambda step: None):  # which draws no large values
        arguments, upstream = draw(op, case, seed, "cpu")
    wanted = [arguments[name].requires_grad_() for name in op.differentiable]
    call = _call(session, op, arguments)
    steps: list[Reply] = []
    with Launches(random.Random(seed), steps.append).counting(), Operators(steps.append):
        output = call()
        counted["forward"] = list(steps)
        if output.requires_grad and "backward" in case.directions:
            torch.autograd.grad(output, wanted, upstream, allow_unused=True)
            counted["backward"] = steps


def _call(session: Session, op: Op[Any], arguments: Reply) -> Callable[[], torch.Tensor]:
    """Return the call that is timed on a GPU; options that have their default are not given."""
    contract_of = inspect.signature(op.interface.__call__).parameters
    given = {
        name: each
        for name, each in arguments.items()
        if isinstance(each, torch.Tensor) or each != contract_of[name].default
    }
    assert session.function is not None
    named = contract.named_options(session.function, given)
    if session.prepare:
        prepared: Callable[[], torch.Tensor] = session.prepare(**named)
        return prepared
    return functools.partial(session.function, **named)
