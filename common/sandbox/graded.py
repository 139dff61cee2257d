"""One graded call, in a solution's process: forward, backward, and their results' delivery."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from common.arena import dtype_name, integers
from common.sandbox import backend
from common.sandbox.failures import Refused
from common.sandbox.poison import Poison
from common.sandbox.session import Call, Session, check_class
from common.wire import FIRST_RUN, OUTPUT, POISONS, Arguments, Reply, TensorSlot

GRAD_MODES: Mapping[str, Callable[[], contextlib.AbstractContextManager[Any]]] = MappingProxyType(
    {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
)
"""The modes of autograd that a setting may name."""


def forward(
    session: Session,
    call: Arguments,
    result: TensorSlot,
    poison: float | None,
    backwards: bool = False,
    attempt: str = "",
    alive: Sequence[str] = (),
    setting: str = "",
) -> Reply:
    """Call the solution once and copy its output into the slot `result`.

    Args:
        session: The solution's session; keeps the call for `backward`.
        call: The arguments; see `wire.Arguments`.
        result: The slot of the output.
        poison: What fresh memory holds; None stands for NaN, which JSON lacks.
        backwards: Under the interpreter, run the programs of a launch from the last to the first.
        attempt: The name under which the call is kept.
        alive: The earlier calls that are kept beside it.
        setting: Where the call runs; see `grading.plan.Mode`.

    Returns:
        The output's shape and dtype, and whether it is differentiable.
    """
    session.calls = {each: session.calls[each] for each in alive}
    inputs, options = session.bind(call)
    place = backend.another_stream if setting == "stream" else contextlib.nullcontext
    made = Call(inputs, POISONS[FIRST_RUN] if poison is None else poison, backwards, place)
    with checks(session, made), GRAD_MODES.get(setting, contextlib.nullcontext)():
        assert session.function is not None
        output: torch.Tensor = session.function(*inputs.values(), **options)
        session.check_output(output)
    made.results[OUTPUT] = output
    session.calls[attempt] = made
    return _deliver(session, made, OUTPUT, result) | {"differentiable": output.requires_grad}


def backward(
    session: Session, grad_output: TensorSlot, results: Mapping[str, TensorSlot], attempt: str = ""
) -> Reply:
    """Copy the gradients of a call into their slots.

    Args:
        session: The solution's session, with the call.
        grad_output: The slot of the upstream gradient.
        results: The slot of each gradient, by input.
        attempt: The name of the call.

    Returns:
        By input the gradient's shape and dtype, or None where autograd gives no gradient.
    """
    call = session.calls[attempt]
    wanted = [call.inputs[name] for name in results]
    gradient = session.tensor(grad_output)
    with checks(session, call):
        gradients = torch.autograd.grad(call.results[OUTPUT], wanted, gradient, allow_unused=True)
        for each in gradients:
            if each is not None:
                check_class(each)
        del call.results[OUTPUT]
    call.results |= dict(zip(results, gradients, strict=True))
    return {
        name: None if grad is None else _deliver(session, call, name, results[name])
        for name, grad in zip(results, gradients, strict=True)
    }


def deliver(session: Session, attempt: str, name: str, result: TensorSlot) -> Reply:
    """Copy a result of an earlier call into its slot once more, as it is by now."""
    return _deliver(session, session.calls[attempt], name, result)


def conflicts(
    session: Session, call: Arguments, grad_output: TensorSlot, names: Sequence[str]
) -> Reply:
    """Call the solution once more, without a GPU, and name two programs that conflict.

    Args:
        session: The solution's session.
        call: The arguments, as `forward` takes them.
        grad_output: The slot of the upstream gradient.
        names: The inputs whose gradient is asked for, none for forward alone.

    Returns:
        The conflict of each direction by its name, "" where there is none.
    """
    inputs, options = session.bind(call)
    made, found = Call(inputs, POISONS[FIRST_RUN], backwards=False), {}
    with checks(session, made):
        forward = backend.find_conflicts()
        assert session.function is not None
        output = session.function(*inputs.values(), **options)
    found["forward"] = forward.text
    if names and output.requires_grad:
        with checks(session, made):
            backward = backend.find_conflicts()
            wanted = [inputs[name] for name in names]
            torch.autograd.grad(output, wanted, session.tensor(grad_output), allow_unused=True)
        found["backward"] = backward.text
    return found


@contextlib.contextmanager
def checks(session: Session, call: Call) -> Iterator[None]:
    """Poison fresh memory and check addresses while a solution's code runs inside, in its place.

    In the interpreter every address that a kernel touches is held against its launch's arguments;
    on a GPU the guard bands around fresh memory are compared at the end.

    Raises:
        Refused: OUT_OF_BOUNDS, also where the solution swallowed the exception of its own access.
    """
    log = backend.begin_watch(call.inputs, call.backwards)
    try:
        with call.place():
            with Poison(call.poison) as poison:
                yield
            if written := poison.overrun():
                raise Refused("OUT_OF_BOUNDS", written)
    except Exception:
        session.seal.await_threads()
        raise
    finally:
        session.seal.check()
        if log and (fault := log.fault()):
            raise Refused("OUT_OF_BOUNDS", fault) from None


def _deliver(session: Session, call: Call, name: str, result: TensorSlot) -> Reply:
    """Copy a result into its slot if it has the slot's shape and dtype; return both.

    Raises:
        Refused: RUNTIME_ERROR, where the result is on another device; TAMPERED, where it changed
            after it was returned; NONDETERMINISTIC, where it did so after a call on a stream of its
            own, since an honest kernel on the default stream does that too.
    """
    tensor, target = call.results[name], session.tensor(result)
    if tensor.device.type != target.device.type:
        reason = f"a result lies on {tensor.device.type}, expected {target.device.type}"
        raise Refused("RUNTIME_ERROR", reason)
    if tensor.shape == target.shape and tensor.dtype == target.dtype:
        with torch.no_grad(), call.place():
            target.copy_(tensor.detach())
            # work queued on the call's stream is in the copy; work on another may come later
            backend.synchronize()
            if not torch.equal(integers(target), integers(tensor.detach().resolve_neg())):
                raise _late(call)
    return {"shape": list(tensor.shape), "dtype": dtype_name(tensor.dtype)}


def _late(call: Call) -> Refused:
    """Return the failure of a call whose work was not done when its stream was."""
    if call.place is backend.another_stream:
        reason = "work was left on another stream than the caller's"
        return Refused("NONDETERMINISTIC", reason)
    return Refused("TAMPERED", "a result changed after it was returned")
