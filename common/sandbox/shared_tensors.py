"""The tensors of the shared memory, as a solution receives them.

They are new, the previous call's with equal or other values, or in the place of freed ones, so that
a value that the solution keeps under a tensor's address, id or version is found wrong.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence

import torch

from common import wire
from common.arena import Arena
from common.sandbox import backend
from common.wire import Arguments, Reply, TensorSlot

MOST_SHELLS = 4096
"""The most tensors that are made to find one at the address of a freed tensor's object."""
RENEWALS = 1 << 20
"""The versions reserved for a timed input, whose version increases with each change in place."""


class SharedTensors:
    """The memory that the process shares with the harness, and the latest call's tensors in it."""

    def __init__(self) -> None:
        """Map nothing yet."""
        self.arena: Arena | None = None
        self._version = 0
        self._bound: dict[str, torch.Tensor] = {}
        """The tensors of the latest call, by name."""

    def map(self, ticket: wire.Ticket | None, fds: Sequence[int]) -> bool:
        """Unmap the memory, free what torch caches, and map the memory of the ticket, if given.

        Return whether the previous memory is unmapped.
        """
        self._bound = {}
        is_unmapped = self.arena.close() if self.arena else lambda: True
        self.arena = None
        if backend.ON_GPU:
            gc.collect()
            torch.cuda.empty_cache()
        given_back = is_unmapped()
        if ticket:
            self.arena = Arena.mapped(ticket, fds[0] if fds else None)
        return given_back

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
        inputs, options = self.bind(call)
        self._bound = {}
        self._version += RENEWALS
        return inputs, options


def _with_version(tensor: torch.Tensor, version: int) -> torch.Tensor:
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))
    return tensor
