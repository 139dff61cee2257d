"""The memory shared with a solution's process for one case, and the requests made over it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from common.arena import Slot, slot_like
from common.grading.calls import ResultKey, call_json, call_tensors, reserve, result_slots
from common.grading.guarded import GuardedMemory
from common.grading.modes import Mode, modes
from common.grading.problem import OUTPUT, Problem
from common.grading.worker import Worker
from common.solutions import Solution
from common.spec import Direction
from common.wire import GARBAGE, GUARDS, POISONS, Reply

FIRST, LATEST, OTHER, FURTHER, BESIDE = range(5)
"""The attempts at a case: two on the same inputs; one on other inputs in the memory of the first,
where a replayed result is a wrong one; one in a further mode (`modes.py`); and, from BESIDE on,
calls as the latest that live beside it, as a model's further layers do."""
MOST_BESIDE = 3
"""The calls of one case beside the latest, one at least, so that a ring of four buffers shows."""
SMALL = 1 << 14
"""The most elements of a case's results where calls are made beside the latest."""
OTHER_EVERY = 4
"""One case in so many is asked on other inputs too."""
MODE_EVERY = 4
"""One case in so many is asked in a further mode."""


@dataclass(frozen=True)
class Choices:
    """The choices drawn for one solution in one case."""

    other: bool
    """Whether it is asked on other inputs too."""
    mode: Mode | None
    """The further mode in which it is asked, if there is one."""
    beside: int
    """How many calls live beside the latest one, where results are small."""
    dice: random.Random
    """Shuffles the backwards of calls that live at the same time."""


def choose(problem: Problem, solution: Solution) -> Choices:
    """Draw the choices; the problem's draws deal them evenly over the cases of a run."""
    case, draws = problem.case.name, problem.draws
    several = modes(problem.op, problem.device)
    mode = draws.dealt(MODE_EVERY * len(several), case, solution.name, "mode")
    return Choices(
        other=draws.dealt(OTHER_EVERY, case, solution.name, "other inputs") == 0,
        mode=several[mode] if mode < len(several) else None,
        beside=1 + draws.dealt(MOST_BESIDE, case, solution.name, "calls beside the latest"),
        dice=draws.dice(solution.name, case, "order of backwards"),
    )


class Exchange:
    """One case's inputs and results in guarded memory, and the requests that use them.

    A solution is asked in several attempts; each has results of its own. Where two calls live at
    the same time, LATEST has inputs of its own too.
    """

    def __init__(self, problem: Problem, worker: Worker) -> None:
        """Reserve the memory; `lay_inputs` fills it for each attempt."""
        self.problem, self.worker = problem, worker
        self.answered: dict[Direction, set[int]] = {"forward": set(), "backward": set()}
        self.retained: int | None = None
        """The attempt whose graph can be differentiated once more."""
        self.notes: list[str] = []
        """Lines on what decides nothing."""
        self._inputs = call_tensors(problem.arguments, problem.upstream)
        choices = choose(problem, worker.solution)
        # inputs whose elements lie gigabytes apart are laid once
        far = any(slot_like(tensor, 0).far for tensor in self._inputs.values())
        self.asks_other, self.mode = choices.other and not far, choices.mode
        self.dice = choices.dice
        self.beside = range(BESIDE, BESIDE + (choices.beside if self._has_room_beside else 0))
        """The calls that live beside the latest, none where they would take much memory."""
        attempts = [[FIRST, LATEST, *[OTHER] * self.asks_other]]
        if self.interleaved:
            attempts = [[FIRST, OTHER], [LATEST, *self.beside]]
        if self.mode:
            attempts[0].append(FURTHER)
        # where memory is scarce, each attempt writes over the results of the one before
        rooms = [each[:1] if problem.frugal else each for each in attempts]
        results = [result_slots(problem, problem.truth, each) for each in rooms]
        arena, sets = reserve(worker, [self._inputs] * len(attempts), results)
        self.memory = GuardedMemory(arena, sets, self._inputs)
        pairs = zip(attempts, sets, strict=True)
        self.slots = {attempt: slots for several, slots in pairs for attempt in several}
        self._delivered: dict[ResultKey, torch.Tensor] = {}

    @property
    def interleaved(self) -> bool:
        """Whether the calls on other inputs and on these live at the same time.

        Where memory is scarce they are made one after the other.
        """
        return self.asks_other and not self.problem.frugal

    @property
    def _has_room_beside(self) -> bool:
        elements = sum(shape.numel() for shape in self.problem.shapes.values())
        return self.interleaved and elements <= SMALL

    def lay_inputs(self, attempt: int) -> None:
        """Write the guard bytes of this attempt, and its inputs as they were drawn.

        Calls beside the latest share its inputs, and so its guard bytes.
        """
        problem = self._problem(attempt)
        tensors = call_tensors(problem.arguments, problem.upstream)
        guard = GUARDS[(LATEST if attempt in self.beside else attempt) % len(GUARDS)]
        self.memory.lay(self.slots[attempt], tensors, guard)
        if self.problem.frugal:
            for slot in self.slots[attempt].results.values():
                self.memory.arena.bytes_of(slot).fill_(GARBAGE)

    def _slot(self, name: str, attempt: int) -> Slot:
        """Return the place of a result."""
        return self.slots[attempt].results[name, FIRST if self.problem.frugal else attempt]

    def _problem(self, attempt: int) -> Problem:
        return self.problem.other if attempt == OTHER else self.problem

    # --- requests ---------------------------------------------------------------------------------

    def forward(self, attempt: int, alive: Sequence[int] = ()) -> Reply:
        """Have the solution called and its output written to this attempt's place.

        The calls of the attempts `alive` keep their outputs; every other one ends.
        """
        poison = POISONS[attempt % len(POISONS)]
        mode = self.mode if attempt == FURTHER else None
        reply = self.worker.ask(
            "forward",
            attempt=attempt,
            call=self._call(attempt),
            result=self._slot(OUTPUT, attempt).json(),
            poison=None if poison != poison else poison,
            backwards=attempt == LATEST,
            alive=list(alive),
            setting=mode.setting if mode else "",
        )
        if not reply.get("verdict"):
            self._take("forward", [OUTPUT], attempt)
        return reply

    def _call(self, attempt: int) -> Reply:
        arguments, inputs = self._problem(attempt).arguments, self.slots[attempt].inputs
        call = call_json(self.problem.op, arguments, inputs)
        if attempt == OTHER:
            call["kept"] = sorted(self.problem.other.unchanged)
        if attempt == FURTHER and self.mode:
            call["differentiable"] = list(self.mode.differentiable)
        return call

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
            results={name: self._slot(name, attempt).json() for name in names},
            retain=retain,
        )

    def _take(self, direction: Direction, names: Iterable[str], attempt: int) -> None:
        """Copy results at once: their memory stays the process's to write."""
        self.answered[direction].add(attempt)
        for name in names:
            self._delivered[name, attempt] = self._present(name, attempt)

    def _present(self, name: str, attempt: int) -> torch.Tensor:
        slot = self._slot(name, attempt)
        return self.problem.kept(self.memory.arena.tensor(slot))

    def names(self, direction: Direction, attempt: int = FIRST) -> list[str]:
        """Return the names of the results that an attempt has in this direction."""
        if direction == "forward":
            return [OUTPUT]
        mode = self.mode if attempt == FURTHER else None
        if mode and mode.forward_alone:
            return []
        names = mode.differentiable if mode else self.problem.op.differentiable
        return [name for name in names if name in self.problem.truth]

    def result(self, name: str, attempt: int) -> torch.Tensor:
        """Return the copy of a result that was made when the process delivered it."""
        return self._delivered[name, attempt]

    def later(self, name: str, attempt: int) -> torch.Tensor | Reply:
        """Return a result as its call holds it now, or the failure of that request."""
        slot = self._slot(name, attempt).json()
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

    def conflicts(self, attempt: int, direction: Direction) -> Reply:
        """Return by direction two programs that conflict; the call's results are dropped."""
        self.lay_inputs(attempt)
        return self.worker.ask(
            "conflicts",
            call=self._call(attempt),
            upstream=self.slots[attempt].inputs["upstream"].json(),
            names=self.names(direction) if direction == "backward" else [],
        )
