"""The memory shared with a solution's process for one case, and the two requests made over it."""

from __future__ import annotations

import re
import secrets

import torch

from common.arena import Arena, lay_out, shifted, storage_bytes, words
from common.grading.calls import call_json, call_tensors, result_slots
from common.grading.problem import OUTPUT, Problem
from common.grading.worker import Worker
from common.spec import Direction
from common.wire import GARBAGE, GUARDS, POISONS, Reply

AGAIN = len(POISONS)
"""A further attempt on other inputs in the same memory, where a stored result is a wrong one."""


class Exchange:
    """The memory shared for one case, and the two requests made over it."""

    def __init__(self, problem: Problem, worker: Worker) -> None:
        self.problem, self.worker = problem, worker
        self.answered: dict[Direction, set[int]] = {"forward": set(), "backward": set()}
        # between the two, so that no call can be told to be on inputs that were there before
        self.attempts = (0, AGAIN, 1) if worker.ask_again() else (0, 1)
        self._inputs = call_tensors(problem.arguments, problem.upstream)
        self._gaps = {name: gaps_of(tensor) for name, tensor in self._inputs.items()}
        rooms = result_slots(problem, problem.truth, self.attempts)
        self.slots = lay_out([*self._inputs.items(), *rooms.items()])
        self._arena: Arena = worker.arena(max(slot.end for slot in self.slots.values()))
        for name in rooms:
            self._arena.bytes_of(self.slots[name]).fill_(GARBAGE)
        self._bands = {"": self._arena.band_before_all()}
        self._bands |= {name: self._arena.band_after(slot) for name, slot in self.slots.items()}
        self._guard = 0
        self._laid: dict[str, torch.Tensor] = {}

    def lay_inputs(self, attempt: int) -> None:
        """As they were drawn, whatever an earlier attempt did to them, but for what lies between
        the elements of a view; AGAIN shifts elements."""
        self._guard = GUARDS[attempt % len(GUARDS)]
        for band in self._bands.values():
            band.fill_(self._guard)
        for name, tensor in self._inputs.items():
            moves = attempt == AGAIN and name in (*self.problem.op.changing, "upstream")
            laid, gaps = _moved(tensor) if moves else storage_bytes(tensor), self._gaps[name]
            self._laid[name] = laid if gaps is None else laid.masked_fill(gaps, self._guard)
            self._arena.bytes_of(self.slots[name]).copy_(self._laid[name])

    def forward(self, attempt: int) -> Reply:
        poison = POISONS[attempt % len(POISONS)]
        reply = self.worker.call(
            "forward",
            call=call_json(self.problem.op, self.problem.arguments, self.slots),
            result=self.slots[f"{OUTPUT} {attempt}"].json(),
            poison=None if poison != poison else poison,
            backwards=attempt == 1,
        )
        if not reply.get("verdict"):
            self.answered["forward"].add(attempt)
        return reply

    def backward(self, attempt: int) -> Reply:
        names = self.problem.op.differentiable
        reply = self.worker.call(
            "backward",
            upstream=self.slots["upstream"].json(),
            results={name: self.slots[f"{name} {attempt}"].json() for name in names},
        )
        if not reply.get("verdict") and None not in reply.values():
            self.answered["backward"].add(attempt)
        return reply

    def changed(self) -> str | None:
        """The first argument whose memory is not what was laid there."""
        for name, laid in self._laid.items():
            if not torch.equal(words(self._arena.bytes_of(self.slots[name])), words(laid)):
                return "the upstream gradient" if name == "upstream" else name
        return None

    def overrun(self) -> str | None:
        """What was written where no tensor is: `4 bytes after t`."""
        if bool((torch.cat(list(self._bands.values())) == self._guard).all()):
            return None
        names = [re.sub(" [0-9]+$", "", name) for name in self._bands]
        for index, band in enumerate(self._bands.values()):
            written = (band != self._guard).nonzero()
            if len(written):
                after = index == len(names) - 1 or (index and int(written[0]) < len(band) // 2)
                where = f"after {names[index]}" if after else f"before {names[index + 1]}"
                return f"wrote {len(written)} bytes {where}"
        return None

    def result(self, name: str, attempt: int) -> torch.Tensor:
        return self._arena.tensor(self.slots[f"{name} {attempt}"])


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's storage with every element somewhere else."""
    count = tensor.untyped_storage().nbytes() // tensor.itemsize
    return shifted(tensor, 1 + secrets.randbelow(max(count - 1, 1)))


def gaps_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Which bytes of the tensor's storage are no element of it; None where there are none."""
    count = tensor.untyped_storage().nbytes() // tensor.itemsize
    if count == tensor.numel():
        return None
    free = torch.ones(count, dtype=torch.bool, device=tensor.device)
    free.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(False)
    return free.repeat_interleave(tensor.itemsize)
