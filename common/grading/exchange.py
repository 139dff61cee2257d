"""The memory shared with a solution's process for one case, and the two requests made over it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import torch

from common.arena import shifted, storage_bytes, words
from common.grading.calls import call_json, call_tensors, reserve, result_slots
from common.grading.problem import OUTPUT, Problem
from common.grading.worker import Worker
from common.spec import Direction
from common.wire import GUARDS, POISONS, Reply

AGAIN = len(POISONS)
"""A further attempt on other inputs in the same memory, where a replayed result is a wrong one."""


class Exchange:
    """One case's inputs and results in shared memory, with guard bands between them.

    A solution is asked in several attempts on the same memory; each attempt has results of its own.
    Between the tensors, and between the elements of a view, lie guard bytes that differ from one
    attempt to the next: `| guard | t | guard | freqs | guard | upstream | guard | output 0 | ...`.
    """

    def __init__(self, problem: Problem, worker: Worker) -> None:
        """Reserve the memory; `lay_inputs` fills it for each attempt."""
        self.problem, self.worker = problem, worker
        self.answered: dict[Direction, set[int]] = {"forward": set(), "backward": set()}
        # AGAIN in the middle: the other two get the same inputs, yet never in successive calls
        self.attempts = (0, AGAIN, 1) if worker.ask_again() else (0, 1)
        self._inputs = call_tensors(problem.arguments, problem.upstream)
        self._gaps = {name: gaps_of(tensor) for name, tensor in self._inputs.items()}
        results = result_slots(problem, problem.truth, self.attempts)
        self._arena, (self.slots,) = reserve(worker, [self._inputs], results)
        self._bands = list(self._guard_bands())
        self._guard = 0
        self._laid: dict[str, torch.Tensor] = {}

    def _guard_bands(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each guard band with the name of the tensor before it, which the first lacks."""
        yield "", self._arena.band_before_all()
        for name, slot in self.slots.inputs.items():
            yield name, self._arena.band_after(slot)
        for (name, _), slot in self.slots.results.items():
            yield name, self._arena.band_after(slot)

    def lay_inputs(self, attempt: int) -> None:
        """Write the guard bytes of this attempt, and the inputs as they were drawn.

        AGAIN moves the elements of the inputs, so that a stored result of another attempt is wrong.
        """
        self._guard = GUARDS[attempt % len(GUARDS)]
        for _, band in self._bands:
            band.fill_(self._guard)
        for name, tensor in self._inputs.items():
            moves = attempt == AGAIN and name in (*self.problem.op.changing, "upstream")
            laid, gaps = _moved(tensor) if moves else storage_bytes(tensor), self._gaps[name]
            self._laid[name] = laid if gaps is None else laid.masked_fill(gaps, self._guard)
            self._arena.bytes_of(self.slots.inputs[name]).copy_(self._laid[name])

    def forward(self, attempt: int) -> Reply:
        """Have the solution called and its output written to this attempt's place."""
        poison = POISONS[attempt % len(POISONS)]
        reply = self.worker.ask(
            "forward",
            call=call_json(self.problem.op, self.problem.arguments, self.slots.inputs),
            result=self.slots.results[OUTPUT, attempt].json(),
            poison=None if poison != poison else poison,
            backwards=attempt == 1,
        )
        if not reply.get("verdict"):
            self.answered["forward"].add(attempt)
        return reply

    def backward(self, attempt: int) -> Reply:
        """Have the last output differentiated and the gradients written to this attempt's place."""
        names = self.problem.op.differentiable
        reply = self.worker.ask(
            "backward",
            upstream=self.slots.inputs["upstream"].json(),
            results={name: self.slots.results[name, attempt].json() for name in names},
        )
        if not reply.get("verdict") and None not in reply.values():
            self.answered["backward"].add(attempt)
        return reply

    def changed(self) -> str | None:
        """Return the first argument with other bytes in its memory than were laid there."""
        for name, laid in self._laid.items():
            present = self._arena.bytes_of(self.slots.inputs[name])
            if not torch.equal(words(present), words(laid)):
                return "the upstream gradient" if name == "upstream" else name
        return None

    def overrun(self) -> str | None:
        """Describe the first write into a guard band: `wrote 4 bytes after t`."""
        if bool((torch.cat([band for _, band in self._bands]) == self._guard).all()):
            return None
        for index, (name, band) in enumerate(self._bands):
            written = (band != self._guard).nonzero()
            if len(written):
                after = index and int(written[0]) < len(band) // 2
                if after or index == len(self._bands) - 1:
                    where = f"after {name}"
                else:
                    where = f"before {self._bands[index + 1][0]}"
                return f"wrote {len(written)} bytes {where}"
        return None

    def result(self, name: str, attempt: int) -> torch.Tensor:
        """Return a result of an attempt; it lies in the shared memory."""
        return self._arena.tensor(self.slots.results[name, attempt])


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's storage with every element somewhere else."""
    count = tensor.untyped_storage().nbytes() // tensor.itemsize
    return shifted(tensor, 1 + secrets.randbelow(max(count - 1, 1)))


def gaps_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a mask of the storage's bytes that belong to no element; None where all do."""
    count = tensor.untyped_storage().nbytes() // tensor.itemsize
    if count == tensor.numel():
        return None
    free = torch.ones(count, dtype=torch.bool, device=tensor.device)
    free.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(False)
    return free.repeat_interleave(tensor.itemsize)
