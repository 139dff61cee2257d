"""The memory shared with a solution's process for one case, and the two requests made over it."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from common.arena import Arena, Slot, lay_out, storage_bytes
from common.problem import OUTPUT, Problem
from common.spec import Direction, Op
from common.worker import Reply, Worker

POISONS = (float("nan"), 12_345.0)
"""What fresh memory holds in the first run and in the second; an element that differs is fresh."""
GARBAGE = 0xA5
"""What a result's memory holds before the solution's process writes it."""


class Exchange:
    """The memory shared for one case, and the two requests made over it."""

    def __init__(self, problem: Problem, worker: Worker) -> None:
        self.problem, self.worker = problem, worker
        self.answered: dict[Direction, int] = {"forward": 0, "backward": 0}
        self._inputs = call_tensors(problem.arguments, problem.upstream)
        dtype = getattr(torch, problem.case.dtype)
        rooms = {
            f"{name} {attempt}": torch.empty(truth.shape, dtype=dtype, device="meta")
            for name, truth in problem.truth.items()
            for attempt in range(len(POISONS))
        }
        self.slots = lay_out([*self._inputs.items(), *rooms.items()])
        self._arena: Arena = worker.arena(max(slot.end for slot in self.slots.values()))
        for name in rooms:
            self._arena.bytes_of(self.slots[name]).fill_(GARBAGE)

    def lay_inputs(self) -> None:
        """As they were drawn, whatever an earlier attempt did to them."""
        for name, tensor in self._inputs.items():
            self._arena.put(self.slots[name], tensor)

    def forward(self, attempt: int) -> Reply:
        poison = POISONS[attempt]
        reply = self.worker.call(
            "forward",
            call=call_json(self.problem.op, self.problem.arguments, self.slots),
            result=self.slots[f"{OUTPUT} {attempt}"].json(),
            poison=None if poison != poison else poison,
        )
        self.answered["forward"] += not reply.get("verdict")
        return reply

    def backward(self, attempt: int) -> Reply:
        names = self.problem.op.differentiable
        reply = self.worker.call(
            "backward",
            upstream=self.slots["upstream"].json(),
            results={name: self.slots[f"{name} {attempt}"].json() for name in names},
        )
        failed = reply.get("verdict") or None in reply.values()
        self.answered["backward"] += not failed
        return reply

    def changed(self) -> str | None:
        """The first argument whose memory is not what was drawn."""
        for name, tensor in self._inputs.items():
            if not torch.equal(self._arena.bytes_of(self.slots[name]), storage_bytes(tensor)):
                return "the upstream gradient" if name == "upstream" else name
        return None

    def results(self, name: str) -> list[torch.Tensor]:
        """The result of each attempt."""
        return [self._arena.tensor(self.slots[f"{name} {i}"]) for i in range(len(POISONS))]


def call_tensors(arguments: dict[str, Any], upstream: torch.Tensor) -> dict[str, torch.Tensor]:
    tensors = {name: v for name, v in arguments.items() if isinstance(v, torch.Tensor)}
    return {**tensors, "upstream": upstream}


def call_json(op: Op[Any], arguments: dict[str, Any], slots: dict[str, Slot]) -> Reply:
    """One call as its worker is told of it: only the options that are not left at their default."""
    contract = inspect.signature(op.interface.__call__).parameters
    tensors = [name for name, value in arguments.items() if isinstance(value, torch.Tensor)]
    return {
        "tensors": {name: slots[name].json() for name in tensors},
        "optional": [name for name in tensors if contract[name].default is not inspect._empty],
        "options": {
            name: value
            for name, value in arguments.items()
            if name not in tensors and value != contract[name].default
        },
        "differentiable": list(op.differentiable),
        "upstream": slots["upstream"].json(),
    }
