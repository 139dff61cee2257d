"""The session of one solution: its function, the memory shared with the harness, its tensors."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from common import ops
from common.arena import Arena
from common.sandbox import backend, contract
from common.sandbox.clock import Clock, Probes
from common.sandbox.failures import Refused
from common.sandbox.seal import Seal
from common.spec import Op
from common.wire import Arguments, Reply, TensorSlot, Ticket

OPS = {name: ops.load(name) for name in ops.names()}
"""Every op whose file is whole, imported before any solution, which could replace a later one."""

RENEWALS = 1 << 20
"""The versions left to a timed input, which changes in place between calls."""


@dataclass
class Call:
    """One graded call, with what it holds until the harness has compared it."""

    inputs: dict[str, torch.Tensor]
    poison: float
    """What fresh memory holds."""
    backwards: bool
    """Whether the interpreter runs the programs of a launch from the last to the first."""
    place: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    """The stream that forward, backward and the delivery of their results run on."""
    results: dict[str, torch.Tensor] = field(default_factory=dict)
    """The output as `output`, and the gradients by argument."""


class Session:
    """One solution in its process, and the call under way."""

    def __init__(self, seal: Seal) -> None:
        """Begin without a solution, with the tamper check as made before it is loaded."""
        self.seal = seal
        self.op: Op[Any] | None = None
        self.function: Callable[..., Any] | None = None
        self.module: ModuleType | None = None
        self.prepare: Callable[..., Any] | None = None
        self.arena: Arena | None = None
        self.calls: dict[str, Call] = {}
        """The calls whose results are alive, by attempt."""
        self.clocks: dict[bool, Clock] = {}
        """The clocks of the calls that are timed, by whether backward is too."""
        self.probes: Probes | None = None
        self._version = 0
        self._versions: dict[str, int] = {}
        """The versions of the latest call's tensors, by name."""

    def load(self, path: str, op: str, memory: int | None = None) -> Reply:
        """Import the solution's file; see `contract.load` for the verdicts that it raises.

        With `memory`, torch takes no more than so many bytes of the GPU's from then on.
        """
        if memory:
            backend.limit(memory)
        self.op = OPS[op]
        self.function = contract.load(Path(path), self.op)
        self.module = contract.loaded(Path(path))
        self.prepare = contract.preparation(Path(path))
        return {}

    def share(self, ticket: Ticket | None, fd: int | None) -> bool:
        """Map memory of the harness in place of the memory mapped before; none without a ticket.

        Return whether the memory mapped before is given back: a solution may have kept an argument.
        """
        given_back = self.release()
        if ticket:
            self.arena = Arena.mapped(ticket, fd)
        return given_back

    def release(self) -> bool:
        """Release the shared memory, and the GPU memory that torch keeps for later."""
        self.calls, self.clocks = {}, {}
        mapped = None
        if self.arena:
            mapped = self.arena.mapping()
            self.arena.close()
            self.arena = None
        if backend.ON_GPU:
            gc.collect()
            torch.cuda.empty_cache()
        return not (mapped and mapped())

    def tensor(self, slot: TensorSlot, version: int | None = None) -> torch.Tensor:
        """Return the slot of shared memory as a tensor, by default with a version that none had.

        The harness may have changed the memory. A solution that keeps what it derived from an
        argument under `(data_ptr(), _version)` must not find it for another content.
        """
        assert self.arena is not None
        tensor = self.arena.tensor(slot)
        self._version += 1
        now = self._version if version is None else version
        torch._C._autograd._unsafe_set_version_counter((tensor,), (now,))
        return tensor

    def elements(self, slot: TensorSlot) -> torch.Tensor:
        """Return the slot's whole storage as bytes, `[elements, bytes of an element]`."""
        assert self.arena is not None
        return self.arena.bytes_of(slot).view(-1, getattr(torch, slot.dtype).itemsize)

    def bind(self, call: Arguments) -> tuple[dict[str, torch.Tensor], Reply]:
        """Return a call's tensors by name, and its options.

        An argument that takes a gradient is a leaf that requires one. An option may be a tensor.
        Those that are `kept` have their version of the call before.

        Raises:
            Refused: UNSUPPORTED, where the function does not name an option of the call.
        """
        assert self.function is not None
        kept = {name: self._versions.get(name) for name in call.kept}
        tensors = {name: self.tensor(slot, kept.get(name)) for name, slot in call.tensors.items()}
        self._versions = {name: tensor._version for name, tensor in tensors.items()}
        for name in call.differentiable:
            tensors[name] = tensors[name].detach().requires_grad_()
        optional = {name: tensors.pop(name) for name in call.optional}
        return tensors, contract.named_options(self.function, {**call.options, **optional})

    def prepared(
        self,
        call: Arguments,
        function: Callable[..., Any] | None,
        prepare: Callable[..., Any] | None = None,
    ) -> tuple[Any, Any, Any]:
        """Return a call to be timed: forward, the inputs that take a gradient, the upstream one.

        Forward is the bare function with its arguments, since anything around it would be timed
        too, or what a peer's `prepare` returns for these arguments.
        """
        self.calls = {}
        inputs, options = self.bind(call)
        self._version += RENEWALS
        wanted = [inputs[name] for name in call.differentiable]
        grad_output = self.tensor(call.grad_output)
        if prepare:
            return prepare(**inputs, **options), wanted, grad_output
        assert function is not None
        return functools.partial(function, *inputs.values(), **options), wanted, grad_output

    def check_output(self, output: Any) -> None:
        """Check that an output is a tensor of torch's own class, in memory of its own.

        Raises:
            Refused: INCORRECT_SHAPE, TAMPERED or MUTATED_INPUT, in this order.
        """
        assert self.arena is not None
        if not isinstance(output, torch.Tensor):
            raise Refused("INCORRECT_SHAPE", f"returned {type(output).__name__}, not a tensor")
        check_class(output)
        if output.numel() and self.arena.holds(output):
            raise Refused("MUTATED_INPUT", "the output lies in the memory of an argument")


def check_class(result: torch.Tensor) -> None:
    """Check that a result is of torch's own class; any other may compute it when it is read.

    Raises:
        Refused: TAMPERED.
    """
    if type(result) is not torch.Tensor:
        reason = f"returned {type(result).__name__}, which may not hold what it shows"
        raise Refused("TAMPERED", reason)
