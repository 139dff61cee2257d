"""One board case at its true shape, called in a solution's process without its arithmetic."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from common.ops._draw import draw
from common.sandbox import contract
from common.sandbox.hollow import Hollow
from common.sandbox.session import Session
from common.spec import Case


@dataclass(frozen=True)
class TrueCall:
    """A solution's call on a case's inputs, whose large floating values are nothing."""

    forward: Callable[[], torch.Tensor]
    wanted: list[torch.Tensor]
    upstream: torch.Tensor

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
    with Hollow():  # type: ignore[no-untyped-call]
        arguments, upstream = draw(op, case, seed, "cpu")
    wanted = [arguments[name].requires_grad_() for name in op.differentiable]
    inputs, options = contract.given(op, arguments)
    named = contract.named_options(session.function, options)
    if session.prepare:
        return TrueCall(session.prepare(*inputs, **named), wanted, upstream)
    return TrueCall(functools.partial(session.function, *inputs, **named), wanted, upstream)
