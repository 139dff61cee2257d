"""The memory shared with a solution's process for one case, and the requests made over it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from common.arena import Slot, content, slot_like, words
from common.grading.calls import ResultKey, call_json, call_tensors, reserve, result_slots
from common.grading.modes import Mode, modes
from common.grading.problem import OUTPUT, Problem
from common.grading.worker import Worker
from common.spec import Direction
from common.wire import GUARDS, POISONS, Reply

FIRST, LATEST, OTHER, FURTHER = range(4)
"""The attempts at a case: two on the same inputs; one on other inputs in the memory of the first,
where a replayed result is a wrong one; and one in a further mode (`modes.py`)."""
OTHER_EVERY = 4
"""One case in so many is asked on other inputs too, of two calls that live at the same time."""
MODE_EVERY = 4
"""One case in so many is asked in a further mode."""


class Exchange:
    """One case's inputs and results in shared memory, with guard bands between them.

    A solution is asked in several attempts; each has results of its own. Between the tensors, and
    between the elements of a view, lie guard bytes that differ from one attempt to the next:
    `| guard | t | guard | freqs | guard | upstream | guard | output 0 | ...`. Where two calls live
    at the same time, LATEST has inputs of its own behind these.
    """

    def __init__(self, problem: Problem, worker: Worker) -> None:
        """Reserve the memory; `lay_inputs` fills it for each attempt."""
        self.problem, self.worker = problem, worker
        self.answered: dict[Direction, set[int]] = {"forward": set(), "backward": set()}
        self.retained: int | None = None
        """The attempt whose graph can be differentiated once more."""
        self._inputs = call_tensors(problem.arguments, problem.upstream)
        self._gaps = {name: gaps_of(tensor) for name, tensor in self._inputs.items()}
        self.interleaved, self.mode = self._drawn()
        attempts = [[FIRST, LATEST]]
        if self.interleaved:
            attempts = [[FIRST, OTHER], [LATEST]]
        if self.mode:
            attempts[0].append(FURTHER)
        results = [result_slots(problem, problem.truth, each) for each in attempts]
        self._arena, self._sets = reserve(worker, [self._inputs] * len(attempts), results)
        pairs = zip(attempts, self._sets, strict=True)
        self.slots = {attempt: slots for several, slots in pairs for attempt in several}
        self._bands = list(self._guard_bands())
        self._guard = 0
        self._laid: dict[Slot, tuple[str, torch.Tensor]] = {}
        self._delivered: dict[ResultKey, torch.Tensor] = {}

    def _drawn(self) -> tuple[bool, Mode | None]:
        """Draw whether two calls live at the same time, and the further mode if there is one.

        Inputs whose elements lie gigabytes apart are laid once.
        """
        chance = self.worker.chance
        interleaved = chance.once_in(OTHER_EVERY, "other inputs")
        far = any(slot_like(tensor, 0).far for tensor in self._inputs.values())
        several = modes(self.problem.op, self.problem.upstream.device.type)
        mode = None
        if not chance.in_turn(MODE_EVERY, "a mode"):
            mode = several[chance.in_turn(len(several), "the mode")]
        return interleaved and not far, mode

    def _guard_bands(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each guard band with the name of the tensor before it, which the first lacks."""
        yield "", self._arena.band_before_all()
        for slots in self._sets:
            for name, slot in slots.inputs.items():
                yield name, self._arena.band_after(slot)
            for (name, _), slot in slots.results.items():
                yield name, self._arena.band_after(slot)

    def lay_inputs(self, attempt: int) -> None:
        """Write the guard bytes of this attempt, and its inputs as they were drawn."""
        self._guard = GUARDS[attempt % len(GUARDS)]
        for _, band in self._bands:
            band.fill_(self._guard)
        problem = self._problem(attempt)
        for name, tensor in call_tensors(problem.arguments, problem.upstream).items():
            slot, laid, gaps = self.slots[attempt].inputs[name], content(tensor), self._gaps[name]
            laid = laid if gaps is None else laid.masked_fill(gaps, self._guard)
            self._arena.content(slot).copy_(laid)
            self._laid[slot] = name, laid

    def _problem(self, attempt: int) -> Problem:
        return self.problem.other if attempt == OTHER else self.problem

    # --- requests ---------------------------------------------------------------------------------

    def forward(self, attempt: int, alive: Sequence[int] = ()) -> Reply:
        """Have the solution called and its output written to this attempt's place.

        The calls of the attempts `alive` keep their outputs; every other one ends.
        """
        poison, slots = POISONS[attempt % len(POISONS)], self.slots[attempt]
        call = call_json(self.problem.op, self._problem(attempt).arguments, slots.inputs)
        mode = self.mode if attempt == FURTHER else None
        if mode:
            call["differentiable"] = list(mode.differentiable)
        reply = self.worker.ask(
            "forward",
            attempt=attempt,
            call=call,
            result=slots.results[OUTPUT, attempt].json(),
            poison=None if poison != poison else poison,
            backwards=attempt == LATEST,
            alive=list(alive),
            setting=mode.setting if mode else "",
        )
        if not reply.get("verdict"):
            self._take("forward", [OUTPUT], attempt)
        return reply

    def backward(self, attempt: int, retain: bool = False) -> Reply:
        """Have an output differentiated and the gradients written to this attempt's place.

        With `retain`, its graph can be differentiated once more; see `second_backward`.
        """
        reply = self._ask_backward(attempt, retain)
        if not reply.get("verdict") and None not in reply.values():
            self._take("backward", self.names("backward", attempt), attempt)
        return reply

    def _ask_backward(self, attempt: int, retain: bool) -> Reply:
        slots = self.slots[attempt]
        names = self.names("backward", attempt)
        return self.worker.ask(
            "backward",
            attempt=attempt,
            upstream=slots.inputs["upstream"].json(),
            results={name: slots.results[name, attempt].json() for name in names},
            retain=retain,
        )

    def _take(self, direction: Direction, names: Iterable[str], attempt: int) -> None:
        """Copy results at once: their memory stays the process's to write."""
        self.answered[direction].add(attempt)
        for name in names:
            self._delivered[name, attempt] = self._present(name, attempt)

    def _present(self, name: str, attempt: int) -> torch.Tensor:
        return self._arena.tensor(self.slots[attempt].results[name, attempt]).clone()

    def names(self, direction: Direction, attempt: int = FIRST) -> list[str]:
        """Return the names of the results that an attempt has in this direction."""
        if direction == "forward":
            return [OUTPUT]
        mode = self.mode if attempt == FURTHER else None
        names = mode.differentiable if mode else self.problem.op.differentiable
        return [name for name in names if name in self.problem.truth]

    def result(self, name: str, attempt: int) -> torch.Tensor:
        """Return the copy of a result that was made when the process delivered it."""
        return self._delivered[name, attempt]

    def later(self, name: str, attempt: int) -> torch.Tensor | Reply:
        """Return a result as its call holds it now, or the failure of that request."""
        slot = self.slots[attempt].results[name, attempt].json()
        reply = self.worker.ask("deliver", attempt=attempt, name=name, result=slot)
        return reply if reply.get("verdict") else self._present(name, attempt)

    def second_backward(self, attempt: int) -> dict[str, torch.Tensor | None] | Reply:
        """Return the gradients of a second backward of one graph, or the failure of that request.

        Results that were delivered stay as they are.
        """
        reply = self._ask_backward(attempt, False)
        if "verdict" in reply:
            return reply
        names = self.names("backward", attempt)
        return {name: self._present(name, attempt) if reply.get(name) else None for name in names}

    # --- checks of the memory ---------------------------------------------------------------------

    def changed(self) -> str | None:
        """Return the first argument with other bytes in its memory than were laid there."""
        for slot, (name, laid) in self._laid.items():
            present = self._arena.content(slot)
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


def gaps_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a mask of the storage's bytes that belong to no element; None where all do.

    None as well where the elements lie far apart: that memory is left alone.
    """
    count = tensor.untyped_storage().nbytes() // tensor.itemsize
    if count == tensor.numel() or slot_like(tensor, 0).far:
        return None
    free = torch.ones(count, dtype=torch.bool, device=tensor.device)
    free.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(False)
    return free.repeat_interleave(tensor.itemsize)
