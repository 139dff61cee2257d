"""One board case at its true shape, called in a solution's process without its arithmetic."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from common.ops._draw import draw
from common.sandbox import contract
from common.sandbox.hollow import SMALL, Hollow
from common.sandbox.session import Session
from common.spec import Case, Op


@dataclass(frozen=True)
class TrueCall:
    """A solution's call on a case's inputs, of which the large ones hold nothing."""

    forward: Callable[[], torch.Tensor]
    wanted: list[torch.Tensor]
    upstream: torch.Tensor
    small: int
    """The elements up to which a tensor has its true values; see `Hollow`."""

    def backward(self, output: torch.Tensor) -> None:
        """Take the gradients of the inputs that take one."""
        torch.autograd.grad(output, self.wanted, self.upstream, allow_unused=True)


def board_case(session: Session, name: str) -> Case:
    """Return the board case of this name, of the op that the solution is for."""
    assert session.op is not None
    found: Case = next(each for each in session.op.cases("board") if each.name == name)
    return found


def true_call(session: Session, case: Case, seed: int) -> TrueCall:
    """Draw a case's inputs at its true shape, and bind them to the call that is timed on a GPU.

    Options that have their default are not given.

    Raises:
        Refused: UNSUPPORTED, where the function does not name an option of the call.
    """
    op = session.op
    assert op is not None and session.function is not None
    small = _small(op, case, seed)
    with Hollow(small):
        arguments, upstream = draw(op, case, seed, "cpu")
    wanted = [arguments[name].requires_grad_() for name in op.differentiable]
    inputs, options = contract.given(op, arguments)
    named = contract.named_options(session.function, options)
    if session.prepare:
        return TrueCall(session.prepare(*inputs, **named), wanted, upstream, small)
    return TrueCall(functools.partial(session.function, *inputs, **named), wanted, upstream, small)


def _small(op: Op[Any], case: Case, seed: int) -> int:
    """Return the elements of the largest argument without a gradient, such as angles; or SMALL.

    A solution may look at its values to tell whether it supports the case.
    """
    with Hollow():
        arguments, _ = draw(op, case, seed, "cpu")
    others = (each for name, each in arguments.items() if name not in op.differentiable)
    return max([SMALL, *(each.numel() for each in others if isinstance(each, torch.Tensor))])
