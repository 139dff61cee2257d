"""One graded call, in a solution's process: forward, backward, and their results' delivery."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from common.arena import dtype_name
from common.sandbox import backend
from common.sandbox.failures import Refused
from common.sandbox.poison import Poison
from common.sandbox.session import Session
from common.wire import POISONS, Reply


def forward(
    session: Session, call: Reply, result: Reply, poison: float | None, backwards: bool = False
) -> Reply:
    """Call the solution once and copy its output into the slot `result`.

    Args:
        session: The solution's session; keeps the output for `backward`.
        call: The arguments; see `grading.calls.call_json`.
        result: The slot of the output.
        poison: What fresh memory holds; None stands for NaN, which JSON lacks.
        backwards: Under the interpreter, run the programs of a launch from the last to the first.

    Returns:
        The output's shape and dtype, and whether it is differentiable.
    """
    session.backwards = backwards
    session.poison = POISONS[0] if poison is None else poison
    session.inputs, options = session.bind(call)
    with checks(session):
        assert session.function is not None
        output: torch.Tensor = session.function(**session.inputs, **options)
        session.check_output(output)
        session.output = output
    return _deliver(session, output, result) | {"differentiable": output.requires_grad}


def backward(session: Session, upstream: Reply, results: Reply) -> Reply:
    """Copy the gradients of the last forward into their slots.

    Returns:
        By input the gradient's shape and dtype, or None where autograd gives no gradient.
    """
    assert session.output is not None
    inputs = {name: session.inputs[name] for name in results}
    gradient = session.tensor(upstream)
    with checks(session):
        gradients = torch.autograd.grad(
            session.output, list(inputs.values()), gradient, allow_unused=True
        )
        session.output = None
    return {
        name: None if grad is None else _deliver(session, grad, results[name])
        for name, grad in zip(inputs, gradients, strict=True)
    }


@contextlib.contextmanager
def checks(session: Session) -> Iterator[None]:
    """Poison fresh memory and check addresses while a solution's code runs inside.

    In the interpreter every address that a kernel touches is held against its launch's arguments;
    on a GPU the guard bands around fresh memory are compared at the end.

    Raises:
        Refused: OUT_OF_BOUNDS, also where the solution swallowed the exception of its own access.
    """
    log = backend.begin_watch(session.inputs, session.backwards)
    held = (*session.held(), *backend.watching(log))
    try:
        with Poison(session.poison) as poison:
            held = (*held, poison.held())
            yield
            if _get_current_dispatch_mode() is not poison:
                session.refuse("the mode that poisons fresh memory was ended")
        if written := poison.overrun():
            raise Refused("OUT_OF_BOUNDS", written)
    finally:
        session.hold(*held)
        if log and (fault := log.fault()):
            raise Refused("OUT_OF_BOUNDS", fault) from None


def _deliver(session: Session, tensor: torch.Tensor, result: Reply) -> Reply:
    """Copy a result into its slot if it has the slot's shape and dtype; return both.

    Raises:
        Refused: RUNTIME_ERROR, where the result is on another device; TAMPERED, where it changed
            after it was returned.
    """
    target = session.tensor(result)
    if tensor.device.type != target.device.type:
        reason = f"a result lies on {tensor.device.type}, expected {target.device.type}"
        raise Refused("RUNTIME_ERROR", reason)
    if tensor.shape == target.shape and tensor.dtype == target.dtype:
        with torch.no_grad():
            target.copy_(tensor.detach())
            # work queued on the call's stream is in the copy; work on another may come later
            backend.synchronize()
            same = (target == tensor) | ((target != target) & (tensor != tensor))
            if not bool(same.all()):
                raise Refused("TAMPERED", "a result changed after it was returned")
    return {"shape": list(tensor.shape), "dtype": dtype_name(tensor.dtype)}
