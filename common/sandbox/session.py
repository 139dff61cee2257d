"""The session of one solution: its graded calls, and the shared memory with their tensors."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from common import ops, wire
from common.arena import Arena, dtype_name, integers
from common.gradients import second_derivatives
from common.sandbox import backend, contract
from common.sandbox.configurations import CONFIGURATIONS
from common.sandbox.failures import judge
from common.sandbox.interpreter import bounds
from common.sandbox.interpreter.explanation import Conflicts
from common.sandbox.launches import LOG
from common.sandbox.poison import Poison
from common.sandbox.seal import Seal
from common.verdicts import Failure
from common.wire import (
    GUARDS,
    LAUNCHED,
    OUTPUT,
    POISONS,
    SECOND_RUN,
    Arguments,
    Reply,
    TensorSlot,
)  # fmt: skip

if TYPE_CHECKING:
    from common.sandbox.clock import Clock

OPS = {name: ops.load(name) for name in ops.names()}
"""Every op that can be imported, loaded before any solution, which could replace an op's module."""

GRAD_MODES: Mapping[str, Callable[[], contextlib.AbstractContextManager[Any]]] = MappingProxyType(
    {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
)
"""The modes of autograd that a setting may name."""
ZERO = 0.0
"""The fill of fresh memory, and so of a kernel's result, where kernels are compiled and not run."""
MOST_SHELLS = 4096
"""The most tensors that are made to find one at the address of a freed tensor's object."""
RENEWALS = 1 << 20
"""The versions reserved for a timed input, whose version increases with each change in place."""


@dataclass
class Call:
    """One graded call, with the tensors that it holds until the harness has compared them."""

    inputs: dict[str, torch.Tensor]
    request: wire.Forward
    results: dict[str, torch.Tensor] = field(default_factory=dict)
    """The output as `output`, and the gradients by argument."""

    def place(self) -> contextlib.AbstractContextManager[None]:
        """Enter the stream of forward, backward and the delivery of their results."""
        on_side = self.request.setting == "stream"
        return backend.another_stream() if on_side else contextlib.nullcontext()


class Session:
    """One solution in its process, and its calls whose results are alive."""

    solution: contract.Loaded
    """Set by `load`, the first request but for `share`."""

    def __init__(self, seal: Seal) -> None:
        """Begin without a solution; `seal` is the tamper check, made before the solution loads."""
        self.seal = seal
        self.arena: Arena | None = None
        self.calls: dict[str, Call] = {}
        """The calls whose results are alive, by attempt."""
        self.clocks: dict[bool, Clock] = {}
        """The clock of forward under False, and of forward with backward under True."""
        self.fds: list[int] = []
        """The file descriptors that came with the request."""
        self._version = 0
        self._bound: dict[str, torch.Tensor] = {}
        """The tensors of the latest call, by name."""

    def load(self, request: wire.Load) -> Reply:
        """Import the solution's file; see `contract.load` for the verdicts that it raises."""
        if request.memory:
            backend.limit(request.memory)
        self.solution = contract.load(Path(request.path), OPS[request.op])
        return {}

    def tune(self, request: wire.Tune) -> Reply:
        """Force configurations from now on; see docs/tuning.md.

        Return as `kernels`, the name, default and search space of each kernel. Return as `asked`,
        the shapes that the solution has looked up since the last request, without their
        configurations.
        """
        kernels = tuple(getattr(self.solution.module, "TUNED", ()))
        asked = [
            [kernel.name, [int(width) for width in widths], dtype_name(dtype), int(tokens)]
            for kernel in kernels
            for tokens, widths, dtype, *_ in kernel.asked
        ]
        for kernel in kernels:
            kernel.asked.clear()
            kernel.forced = {
                (tokens, tuple(widths), getattr(torch, dtype)): config
                for name, widths, dtype, tokens, config in request.choices
                if name == kernel.name
            }
        fields = ("name", "default", "space")
        described = [{field: getattr(kernel, field) for field in fields} for kernel in kernels]
        return {"kernels": described, "asked": asked}

    def share(self, request: wire.Share) -> Reply:
        """Unmap the shared memory, free the memory that torch caches, and map other memory.

        Return as `given_back` whether the previous memory is unmapped; a solution that keeps an
        argument keeps it.
        """
        self.calls, self.clocks, self._bound = {}, {}, {}
        is_unmapped = self.arena.close() if self.arena else lambda: True
        self.arena = None
        if backend.ON_GPU:
            gc.collect()
            torch.cuda.empty_cache()
        given_back = is_unmapped()
        if request.ticket:
            self.arena = Arena.mapped(request.ticket, self.fds[0] if self.fds else None)
        return {"given_back": given_back}

    # --- graded calls ----------------------------------------------------------------------------

    def forward(self, request: wire.Forward) -> Reply:
        """Call the solution once; return a `wire.Result` and the report of `_checks`."""
        self.calls = {name: self.calls[name] for name in request.alive}
        inputs, options = self.bind(request.call)
        solution, call = self.solution, Call(inputs, request)
        solution.check_options(options)
        mode = GRAD_MODES.get(request.setting, contextlib.nullcontext)
        with self._checks(call) as report, mode():
            output: torch.Tensor = solution.function(*inputs.values(), **options)
            self.check_output(output)
        call.results[OUTPUT] = output
        self.calls[request.attempt] = call
        reply = self.deliver(wire.Deliver(request.attempt, OUTPUT, request.result))
        return reply | {"differentiable": output.requires_grad} | report

    def backward(self, request: wire.Backward) -> Reply:
        """Return a `wire.Result` by input, None for one without a gradient, and that report."""
        call, slots = self.calls[request.attempt], request.results
        wanted = [call.inputs[name] for name in slots]
        gradient = self.tensor(call.request.call.grad_output)
        with self._checks(call) as report:
            output = call.results[OUTPUT]
            gradients: Sequence[torch.Tensor | None]
            if request.double:
                gradients = second_derivatives(
                    output, wanted, gradient, request.double == "constant"
                )
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
        request, observer, report = call.request, Conflicts(), Reply()
        CONFIGURATIONS.begin(request.configurations)
        log = backend.begin_watch(call.inputs, backwards=request.run == SECOND_RUN)
        if request.conflicts:
            bounds.WATCH.observer = observer
        fill = ZERO if backend.TARGET else POISONS[request.run]
        try:
            with call.place(), LOG.on_gpu() if backend.ON_GPU else contextlib.nullcontext():
                with Poison(fill, GUARDS[request.run]) as poison:
                    yield report
                if written := poison.overrun():
                    raise Failure("OUT_OF_BOUNDS", written)
            caught = judge(LOG.error) if LOG.error else {}
            report[LAUNCHED] = {"count": LOG.count, "caught": caught}
            if request.conflicts:
                report["conflict"] = observer.conflict
        finally:
            LOG.clear()
            self.seal.check()
            if log and (fault := log.fault()):
                raise Failure("OUT_OF_BOUNDS", fault.text, places=fault.places) from None

    # --- tensors ---------------------------------------------------------------------------------

    def tensor(self, slot: TensorSlot) -> torch.Tensor:
        """Return the slot of shared memory as a tensor with a new version.

        The harness may have changed the memory. A solution that caches values derived from an
        argument under `(data_ptr(), _version)` must not find values of an earlier content.
        """
        assert self.arena is not None
        return self._renewed(self.arena.tensor(slot).detach())

    def _renewed(self, tensor: torch.Tensor) -> torch.Tensor:
        self._version += 1
        return _with_version(tensor, self._version)

    def elements(self, slot: TensorSlot) -> torch.Tensor:
        """Return the slot's whole storage as integers, `[elements]`."""
        assert self.arena is not None
        return self.arena.elements(slot)

    def bind(self, call: Arguments) -> tuple[dict[str, torch.Tensor], Reply]:
        """Return a call's tensors by name, and its options, of which some may be tensors.

        A differentiable argument is a leaf that requires a gradient. The tensors are new, except
        those that the call lists as `kept`, `written` or `freed`. In a process that has not
        answered the previous call, all are new.
        """
        earlier, self._bound = self._bound, {}
        tensors = {name: earlier[name] for name in (*call.kept, *call.written) if name in earlier}
        for name in tensors.keys() & set(call.written):
            self._renewed(tensors[name])
        freed = {name: earlier[name] for name in call.freed if name in earlier}
        earlier.clear()
        tensors |= self._in_place_of(freed, call.tensors)
        for name, slot in call.tensors.items():
            self._bound[name] = tensor = tensors[name] if name in tensors else self.tensor(slot)
            tensor.requires_grad_(name in call.differentiable)
        inputs = dict(self._bound)
        options = {name: inputs.pop(name) for name in call.optional}
        return inputs, {**call.options, **options}

    def _in_place_of(
        self, freed: dict[str, torch.Tensor], slots: Mapping[str, TensorSlot]
    ) -> dict[str, torch.Tensor]:
        """Free tensors; return tensors that take over their addresses, ids and versions.

        Thus a tensor that is freed may be followed by the next one that is allocated. The memory of
        a tensor that the solution still holds is not allocated again: in its place comes a tensor
        with a new id and a new version.
        """
        assert self.arena is not None
        names = {id(tensor): name for name, tensor in freed.items()}
        versions = {name: tensor._version for name, tensor in freed.items()}
        alive = self.arena.still_used(freed)
        wanted = {key: name for key, name in names.items() if name not in alive}
        device = "cuda" if backend.ON_GPU else "cpu"
        tensors, others = dict[str, torch.Tensor](), list[torch.Tensor]()
        while len(tensors) < len(wanted) and len(others) < MOST_SHELLS:
            shell = torch.empty(0, dtype=torch.float32, device=device)
            if name := wanted.get(id(shell)):  # Python soon uses a freed id again
                tensors[name] = shell
            else:
                others.append(shell)
        for name, version in versions.items():
            tensor = self.tensor(slots[name])
            if (shell := tensors.setdefault(name, tensor)) is not tensor:
                shell.data = tensor
            if name not in alive:
                _with_version(shell, version)
        return tensors

    def bind_timed(self, call: Arguments) -> tuple[dict[str, torch.Tensor], Reply]:
        """Return a timed call's tensors, which no later call reuses, and its options."""
        self.calls = {}
        inputs, options = self.bind(call)
        self._bound = {}
        self._version += RENEWALS
        return inputs, options

    def check_output(self, output: Any) -> None:
        """Raise Failure if an output is no plain torch.Tensor, or lies in an argument's memory."""
        assert self.arena is not None
        if not isinstance(output, torch.Tensor):
            raise Failure("INCORRECT_SHAPE", f"returned {type(output).__name__}, not a tensor")
        check_class(output)
        if output.numel() and self.arena.holds(output):
            raise Failure("MUTATED_INPUT", "the output lies in the memory of an argument")


def _with_version(tensor: torch.Tensor, version: int) -> torch.Tensor:
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))
    return tensor


def check_class(result: torch.Tensor) -> None:
    """Raise Failure, TAMPERED, for a subclass of torch.Tensor, which could compute values later."""
    if type(result) is not torch.Tensor:
        reason = f"returned {type(result).__name__}, which may not hold its values"
        raise Failure("TAMPERED", reason)
