"""The session of one solution: its memory, its import, and its graded calls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from common import ops, wire
from common.arena import dtype_name, integers
from common.gradients import derivatives, outputs_of, second_derivatives
from common.sandbox import backend, contract
from common.sandbox.configurations import CONFIGURATIONS
from common.sandbox.failures import judge
from common.sandbox.interpreter import bounds
from common.sandbox.interpreter.explanation import Conflicts, Memory, Store
from common.sandbox.launches import LOG
from common.sandbox.poison import Poison
from common.sandbox.seal import Seal
from common.sandbox.shared_tensors import SharedTensors
from common.verdicts import Failure
from common.wire import GUARDS, LAUNCHED, POISONS, SECOND_RUN, Reply

if TYPE_CHECKING:
    from common.sandbox.clock import Clock

OPS = {name: ops.load(name) for name in ops.names()}
"""Every op that can be imported, loaded before any solution, which could replace an op's module."""


@dataclass
class Call:
    """One graded call, with the tensors that it holds until the harness has compared them."""

    inputs: dict[str, torch.Tensor]
    request: wire.Forward
    results: dict[str, torch.Tensor] = field(default_factory=dict)
    """The outputs, and the gradients by argument."""
    stores: list[Store] = field(default_factory=list)
    memory: dict[str, Memory] = field(default_factory=dict)
    """That of each result; by "", that of all inputs."""

    def place(self) -> contextlib.AbstractContextManager[None]:
        """Enter the stream of forward, backward and the delivery of their results."""
        on_side = self.request.setting == "stream"
        return backend.another_stream() if on_side else contextlib.nullcontext()


class Session(SharedTensors):
    """One solution in its process, and its calls whose results are alive."""

    solution: contract.Loaded
    """Set by `load`, the first request but for `share`."""

    def __init__(self, seal: Seal) -> None:
        """Begin without a solution; `seal` is the tamper check, made before the solution loads."""
        self.seal = seal
        super().__init__()
        self.calls: dict[str, Call] = {}
        """The calls by attempt; those whose results are not alive have lost their tensors."""
        self.clocks: dict[bool, Clock] = {}
        """The clock of forward under False, and of forward with backward under True."""
        self.fds: list[int] = []
        """The file descriptors that came with the request."""

    def load(self, request: wire.Load) -> Reply:
        """Import the solution's file; see `contract.load` for the verdicts that it raises."""
        self.solution = contract.load(Path(request.path), OPS[request.op])
        return {}

    def share(self, request: wire.Share) -> Reply:
        """Unmap the shared memory, free the memory that torch caches, and map other memory.

        Return as `given_back` whether the previous memory is unmapped; a solution that keeps an
        argument keeps it.
        """
        self.calls, self.clocks = {}, {}
        return {"given_back": self.map(request.ticket, self.fds)}

    # --- graded calls ----------------------------------------------------------------------------

    def forward(self, request: wire.Forward) -> Reply:
        """Call the solution once; return a `wire.Result` by output and the report of `_checks`."""
        for name in self.calls.keys() - request.alive:
            self.calls[name].inputs, self.calls[name].results = {}, {}
        inputs, options = self.bind(request.call)
        solution, call = self.solution, Call(inputs, request)
        self.calls[request.attempt] = call
        assert self.arena is not None
        call.memory[""] = Memory.of(self.arena.bytes_at(0, self.arena.nbytes))
        solution.check_options(options)
        modes: Any = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
        mode = modes.get(request.setting, contextlib.nullcontext)
        with self._checks(call) as report, mode():
            outputs = solution.function(*inputs.values(), **options)
            self.check_outputs(outputs, len(request.results))
        call.results = dict(zip(request.results, outputs_of(outputs), strict=True))
        reply: Reply = {
            name: self.deliver(wire.Deliver(request.attempt, name, slot))
            | {"differentiable": call.results[name].requires_grad}
            for name, slot in request.results.items()
        }
        return reply | report

    def backward(self, request: wire.Backward) -> Reply:
        """Return a `wire.Result` by input, None for one without a gradient, and that report."""
        call, slots = self.calls[request.attempt], request.results
        wanted = [call.inputs[name] for name in slots]
        upstream = [*map(self.tensor, call.request.call.upstream.values())]
        with self._checks(call) as report:
            outputs = [call.results[name] for name in call.request.results]
            if request.double:
                constant = request.double == "constant"
                gradients = second_derivatives(outputs, wanted, upstream, constant)
            else:
                gradients = derivatives(outputs, wanted, upstream, retain_graph=request.keep)
            for grad in (each for each in gradients if each is not None):
                check_class(grad)
            if not request.keep:
                call.results = {}
        call.results |= dict(zip(slots, gradients, strict=True))
        reply: Reply = {
            name: None if grad is None else self.deliver(wire.Deliver(request.attempt, name, slot))
            for (name, slot), grad in zip(slots.items(), gradients, strict=True)
        }
        return reply | report

    def deliver(self, request: wire.Deliver) -> Reply:
        """Copy the current value of a call's result into a slot, if shape and dtype match.

        Raise Failure, TAMPERED, if the result changed after the call returned it. If the call ran
        on a side stream, NONDETERMINISTIC instead: an honest kernel that was launched on the
        default stream also writes late.
        """
        call = self.calls[request.attempt]
        tensor, target = call.results[request.name], self.tensor(request.result)
        call.memory[request.name] = Memory.of(tensor)
        if tensor.device.type != target.device.type:
            reason = f"a result lies on {tensor.device.type}, expected {target.device.type}"
            raise Failure("RUNTIME_ERROR", reason)
        if tensor.shape == target.shape and tensor.dtype == target.dtype:
            with torch.no_grad(), call.place():
                target.copy_(tensor.detach())
                # the copy follows work queued on the call's stream, but not work on another stream
                backend.synchronize()
                if not torch.equal(integers(target), integers(tensor.detach().resolve_neg())):
                    if call.request.setting == "stream":
                        reason = "work was left on another stream than the caller's"
                        raise Failure("NONDETERMINISTIC", reason)
                    raise Failure("TAMPERED", "a result changed after it was returned")
        return {"shape": list(tensor.shape), "dtype": dtype_name(tensor.dtype)}

    def stored(self, request: wire.Stored) -> Reply:
        """Return as `place` the store that the request looks for; None if it is not known."""
        call = self.calls.get(request.attempt)
        memory = call.memory.get(request.name) if call else None
        known = memory.stored(call.stores, request.index, request.bits) if call and memory else None
        return {"place": known}

    @contextlib.contextmanager
    def _checks(self, call: Call) -> Iterator[Reply]:
        """Poison fresh memory and check addresses while a solution's code runs in the block.

        In the interpreter, every address that a kernel accesses is checked against the launch's
        arguments. On a GPU, the guard bands around fresh memory are checked at the end. Yield what
        the reply tells from then on: the launches as a `wire.Launched`, and, if asked, as
        `conflict` two programs that conflict.

        Raises:
            Failure: OUT_OF_BOUNDS, even if the solution caught the exception of its access.
        """
        request, conflicts, report = call.request, Conflicts(), Reply()
        CONFIGURATIONS.begin(request.configurations)
        bounds.WATCH.begin_call(call.inputs, backwards=request.run == SECOND_RUN)
        if request.conflicts:
            bounds.WATCH.conflicts = conflicts
        try:
            with call.place(), LOG.on_gpu() if backend.ON_GPU else contextlib.nullcontext():
                with Poison(POISONS[request.run], GUARDS[request.run]) as poison:
                    yield report
                if written := poison.overrun():
                    raise Failure("OUT_OF_BOUNDS", written)
            caught = judge(LOG.error) if LOG.error else {}
            report[LAUNCHED] = {"count": LOG.count, "caught": caught}
            if request.conflicts:
                report["conflict"] = conflicts.conflict
        finally:
            LOG.clear()
            call.stores += bounds.WATCH.stores
            for fault in bounds.WATCH.faults:
                raise Failure("OUT_OF_BOUNDS", fault.text, places=fault.places) from None

    def check_timed(self, outputs: tuple[torch.Tensor, ...]) -> None:
        """Raise Failure if an output of a timed call is none, or the process was tampered with."""
        self.seal.check()  # a solution may restore a replaced function before the end
        self.check_outputs(outputs if outputs[1:] else outputs[0], len(outputs))

    def check_outputs(self, returned: Any, count: int = 1) -> None:
        """Raise Failure unless a call returned so many plain tensors, one alone or in a tuple.

        None may lie in an argument's memory.
        """
        assert self.arena is not None
        outputs = outputs_of(returned)
        kinds = ", ".join(type(output).__name__ for output in outputs)
        fits = (len(outputs), isinstance(returned, tuple)) == (count, count > 1)
        if not fits or not all(isinstance(output, torch.Tensor) for output in outputs):
            shown = f"({kinds})" if isinstance(returned, tuple) else kinds
            wanted = f"a tuple of {count} tensors" if count > 1 else "a tensor"
            raise Failure("INCORRECT_SHAPE", f"returned {shown}, not {wanted}")
        for output in outputs:
            check_class(output)
            if output.numel() and self.arena.holds(output):
                raise Failure("MUTATED_INPUT", "the output lies in the memory of an argument")


def check_class(result: torch.Tensor) -> None:
    """Raise Failure, TAMPERED, for a subclass of torch.Tensor, which could compute values later."""
    if type(result) is not torch.Tensor:
        reason = f"returned {type(result).__name__}, which may not hold its values"
        raise Failure("TAMPERED", reason)
