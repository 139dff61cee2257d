"""One graded call in a solution's process: forward, backward and the delivery of their results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from common import wire
from common.arena import dtype_name, integers
from common.gradients import second_derivatives
from common.sandbox import backend, contract
from common.sandbox.configurations import CONFIGURATIONS
from common.sandbox.failures import Refused, judge
from common.sandbox.interpreter import bounds
from common.sandbox.interpreter.explanation import Conflicts
from common.sandbox.launches import LOG
from common.sandbox.poison import Poison
from common.sandbox.session import Call, Session, check_class
from common.wire import GUARDS, LAUNCHED, OUTPUT, POISONS, SECOND_RUN, Reply

GRAD_MODES: Mapping[str, Callable[[], contextlib.AbstractContextManager[Any]]] = MappingProxyType(
    {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
)
"""The modes of autograd that a setting may name."""
ZERO = 0.0
"""The fill of fresh memory, and so of a kernel's result, where kernels are compiled and not run."""


def forward(session: Session, request: wire.Forward) -> Reply:
    """Call the solution once and copy its output into its slot.

    Returns:
        The output's shape and dtype, whether it is differentiable, and `Call.report`.
    """
    session.calls = {name: session.calls[name] for name in request.alive}
    inputs, options = session.bind(request.call)
    function, call = session.solution.function, Call(inputs, request)
    options = contract.named_options(function, options)
    with checks(session, call), GRAD_MODES.get(request.setting, contextlib.nullcontext)():
        output: torch.Tensor = function(*inputs.values(), **options)
        session.check_output(output)
    call.results[OUTPUT] = output
    session.calls[request.attempt] = call
    reply = deliver(session, wire.Deliver(request.attempt, OUTPUT, request.result))
    return reply | {"differentiable": output.requires_grad} | call.report


def backward(session: Session, request: wire.Backward) -> Reply:
    """Compute the gradients of a call, or their gradients, and copy them into their slots.

    Returns:
        The gradient's shape and dtype by input, or None for an input without a gradient; and
        `Call.report`.
    """
    call, slots = session.calls[request.attempt], request.results
    wanted = [call.inputs[name] for name in slots]
    gradient = session.tensor(call.request.call.grad_output)
    with checks(session, call):
        output = call.results[OUTPUT]
        gradients: Sequence[torch.Tensor | None]
        if request.double:
            gradients = second_derivatives(output, wanted, gradient, request.double == "constant")
        else:
            gradients = torch.autograd.grad(
                output, wanted, gradient, retain_graph=request.keep, allow_unused=True
            )
        for grad in (each for each in gradients if each is not None):
            check_class(grad)
        if not request.keep:
            del call.results[OUTPUT]
    call.results |= dict(zip(slots, gradients, strict=True))
    reply: Reply = {
        name: None if grad is None else deliver(session, wire.Deliver(request.attempt, name, slot))
        for (name, slot), grad in zip(slots.items(), gradients, strict=True)
    }
    return reply | call.report


def deliver(session: Session, request: wire.Deliver) -> Reply:
    """Copy the current value of a call's result into a slot, if shape and dtype match.

    Returns:
        The result's shape and dtype.

    Raises:
        Refused: RUNTIME_ERROR, if the result is on another device; TAMPERED, if it changed after
            the call returned it. If the call ran on a side stream, NONDETERMINISTIC instead, since
            an honest kernel that was launched on the default stream also writes late.
    """
    call = session.calls[request.attempt]
    tensor, target = call.results[request.name], session.tensor(request.result)
    if tensor.device.type != target.device.type:
        reason = f"a result lies on {tensor.device.type}, expected {target.device.type}"
        raise Refused("RUNTIME_ERROR", reason)
    if tensor.shape == target.shape and tensor.dtype == target.dtype:
        with torch.no_grad(), call.place():
            target.copy_(tensor.detach())
            # the copy follows work queued on the call's stream, but not work on another stream
            backend.synchronize()
            if not torch.equal(integers(target), integers(tensor.detach().resolve_neg())):
                if call.request.setting == "stream":
                    reason = "work was left on another stream than the caller's"
                    raise Refused("NONDETERMINISTIC", reason)
                raise Refused("TAMPERED", "a result changed after it was returned")
    return {"shape": list(tensor.shape), "dtype": dtype_name(tensor.dtype)}


@contextlib.contextmanager
def checks(session: Session, call: Call) -> Iterator[None]:
    """Poison fresh memory and check addresses while a solution's code runs in the block.

    In the interpreter, every address that a kernel accesses is checked against the launch's
    arguments. On a GPU, the guard bands around fresh memory are checked at the end. The block runs
    on the stream of `call.place`.

    Raises:
        Refused: OUT_OF_BOUNDS, even if the solution caught the exception of its access.
    """
    request, observer = call.request, Conflicts()
    CONFIGURATIONS.begin(request.configurations)
    log = backend.begin_watch(call.inputs, backwards=request.run == SECOND_RUN)
    if request.conflicts:
        bounds.WATCH.observer = observer
    fill = ZERO if backend.TARGET else POISONS[request.run]
    try:
        with call.place(), LOG.on_gpu() if backend.ON_GPU else contextlib.nullcontext():
            with Poison(fill, GUARDS[request.run]) as poison:
                yield
            if written := poison.overrun():
                raise Refused("OUT_OF_BOUNDS", written)
        caught = judge(LOG.error) if LOG.error else {}
        call.report = {LAUNCHED: {"count": LOG.count, "caught": caught}}
        if request.conflicts:
            call.report["conflict"] = observer.conflict
    finally:
        LOG.clear()
        session.seal.check()
        if log and (fault := log.fault()):
            raise Refused("OUT_OF_BOUNDS", fault.text, places=fault.places) from None
