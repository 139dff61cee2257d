"""The memory shared with a solution's process, and the requests of one case made over it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from common import wire
from common.arena import Arena, content, end_of, is_far, lay_out, words
from common.grading.call_plan import Attempt, Plan
from common.grading.problem import OUTPUT, Problem, call_tensors
from common.grading.worker import Worker
from common.spec import Direction, Op
from common.wire import GARBAGE, Reply, TensorSlot

# --- the slots of calls ---------------------------------------------------------------------------


@dataclass(frozen=True)
class CallSlots:
    """The places of one call's tensors in the shared memory."""

    inputs: dict[str, TensorSlot]
    """By argument; the upstream gradient is `upstream`."""
    results: dict[str, TensorSlot]
    """By result: `output`, or the argument whose gradient it is."""


def result_slots(problem: Problem, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Return a tensor without memory for each result, from which its slot is laid out."""
    dtype, shapes = getattr(torch, problem.case.dtype), problem.shapes
    return {name: torch.empty(shapes[name], dtype=dtype, device="meta") for name in names}


def reserve(
    worker: Worker,
    calls: Sequence[Mapping[str, torch.Tensor]],
    results: Sequence[Mapping[str, torch.Tensor]],
) -> tuple[Arena, list[CallSlots]]:
    """Reserve shared memory for the inputs of several calls and for the results of each.

    The memory of the results is filled with GARBAGE, that of the inputs holds anything.
    """
    both = list(zip(calls, results, strict=True))
    staged = lay_out(
        ((index, part, name), tensor)
        for index, parts in enumerate(both)
        for part, tensors in enumerate(parts)
        for name, tensor in tensors.items()
    )
    slots = [
        CallSlots(*({name: staged[index, part, name] for name in tensors}
                    for part, tensors in enumerate(parts)))
        for index, parts in enumerate(both)
    ]  # fmt: skip
    arena = worker.arena(max(map(end_of, staged.values())))
    for call in slots:
        for slot in call.results.values():
            arena.bytes_of(slot).fill_(GARBAGE)
    return arena, slots


def call_of(op: Op[Any], arguments: dict[str, Any], slots: dict[str, TensorSlot]) -> wire.Arguments:
    """Describe a call to the solution's process, with the options that differ from their default.

    Args:
        op: The operation.
        arguments: The arguments of the call.
        slots: The slot of each input, the upstream gradient's too.
    """
    contract = inspect.signature(op.interface.__call__).parameters
    tensors = [name for name, value in arguments.items() if isinstance(value, torch.Tensor)]
    return wire.Arguments(
        tensors={name: slots[name] for name in tensors},
        optional=[name for name in tensors if contract[name].default is not inspect._empty],
        options={
            name: value
            for name, value in arguments.items()
            if name not in tensors and value != contract[name].default
        },
        differentiable=list(op.differentiable),
        changing=_changing(op, slots),
        grad_output=slots["upstream"],
    )


def _changing(op: Op[Any], slots: Mapping[str, TensorSlot]) -> dict[str, int]:
    """Return the inputs whose elements may change places, and how many must stay together.

    Any element may move, but a `movable` argument's move by slices along its first dimension.
    For example `{"t": 1, "upstream": 1, "freqs": 64}`.
    """
    units = dict.fromkeys((*op.differentiable, "upstream"), 1)
    for name in op.movable:
        slot = slots[name]
        unit, count = slot.stride[0], slot.nbytes // getattr(torch, slot.dtype).itemsize
        if unit and count % unit == 0:
            units[name] = unit
    return units


# --- guard bytes ----------------------------------------------------------------------------------


class GuardedMemory:
    """One case's inputs and results, with guard bytes around them.

    The guard bytes lie between the tensors, and between the elements of a view, and differ from one
    attempt to the next: `| guard | t | guard | freqs | guard | upstream | guard | output 0 | ...`.
    """

    def __init__(
        self, arena: Arena, sets: Sequence[CallSlots], inputs: Mapping[str, torch.Tensor]
    ) -> None:
        """Find the bands and gaps; `stage` fills them.

        Args:
            arena: The memory.
            sets: The places of the tensors, one after the other in the memory.
            inputs: The inputs by name, from which the gaps between their elements are known.
        """
        self.arena = arena
        self._bands = list(self._guard_bands(sets))
        self._gaps = {name: gaps_of(tensor) for name, tensor in inputs.items()}
        self._guard = 0
        self._staged: dict[TensorSlot, tuple[str, torch.Tensor]] = {}

    def _guard_bands(self, sets: Iterable[CallSlots]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each guard band with the name of the tensor before it, which the first lacks."""
        yield "", self.arena.band_before_all()
        for slots in sets:
            for name, slot in (*slots.inputs.items(), *slots.results.items()):
                yield name, self.arena.band_after(slot)

    def stage(self, slots: CallSlots, inputs: Mapping[str, torch.Tensor], guard: int) -> None:
        """Write the guard bytes, and inputs to their places.

        The inputs in other places are written again too: a change by one call is found once.
        """
        self._guard = guard
        for _, band in self._bands:
            band.fill_(guard)
        for name, tensor in inputs.items():
            staged, gaps = content(tensor), self._gaps[name]
            staged = staged if gaps is None else staged.masked_fill(gaps, guard)
            self._staged[slots.inputs[name]] = name, staged
        for slot, (_, staged) in self._staged.items():
            self.arena.content(slot).copy_(staged)

    def changed(self) -> str | None:
        """Return the first argument with other bytes in its memory than were staged there."""
        for slot, (name, staged) in self._staged.items():
            present = self.arena.content(slot)
            if not torch.equal(words(present), words(staged)):
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
    if count == tensor.numel() or is_far(tensor):
        return None
    free = torch.ones(count, dtype=torch.bool, device=tensor.device)
    free.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(False)
    return free.repeat_interleave(tensor.itemsize)


# --- requests -------------------------------------------------------------------------------------


class Execution:
    """One case's inputs and results in guarded memory, and every request that uses them."""

    def __init__(self, problem: Problem, worker: Worker, plan: Plan) -> None:
        """Reserve the memory; each forward stages its inputs."""
        self.problem, self.worker = problem, worker
        self.answered: dict[Direction, set[Attempt]] = {"forward": set(), "backward": set()}
        self._delivered: dict[tuple[str, Attempt], torch.Tensor] = {}
        inputs = call_tensors(problem.arguments, problem.grad_output)
        results = result_slots(problem, problem.names)
        attempts = [each for group in plan.sharing for each in group]
        heads = [group[0] for group in plan.sharing for _ in group]
        # where memory is scarce, each attempt writes over the results of the one before
        arena, sets = reserve(
            worker,
            [inputs if attempt in heads else {} for attempt in attempts],
            [results if attempt in heads or not problem.low_memory else {} for attempt in attempts],
        )
        self.memory = GuardedMemory(arena, sets, inputs)
        own = dict(zip(attempts, sets, strict=True))
        self.slots = {
            each: CallSlots(own[head].inputs, own[each].results or own[head].results)
            for each, head in zip(attempts, heads, strict=True)
        }

    def _problem(self, attempt: Attempt) -> Problem:
        return self.problem.other if attempt.other else self.problem

    def names(self, direction: Direction, attempt: Attempt | None = None) -> list[str]:
        """Return the names of the results in this direction; fewer in a further mode."""
        if direction == "forward":
            return [OUTPUT]
        names = [name for name in self.problem.names if name != OUTPUT]
        if attempt is None:
            return names
        mode = attempt.mode
        return [] if mode.forward_alone else [name for name in names if name in mode.differentiable]

    def stage_inputs(self, attempt: Attempt) -> None:
        """Write the guard bytes of this attempt, and its inputs as they were drawn."""
        problem = self._problem(attempt)
        tensors = call_tensors(problem.arguments, problem.grad_output)
        self.memory.stage(self.slots[attempt], tensors, attempt.guard)
        if self.problem.low_memory:
            for slot in self.slots[attempt].results.values():
                self.memory.arena.bytes_of(slot).fill_(GARBAGE)

    def forward(self, attempt: Attempt, alive: Sequence[Attempt] = ()) -> Reply:
        """Have the solution called and its output written to this attempt's place.

        The calls of the attempts `alive` keep their outputs; every other one ends.
        """
        self.stage_inputs(attempt)
        reply = self.worker.ask(
            wire.Forward(
                attempt=attempt.name,
                call=self._call(attempt),
                result=self.slots[attempt].results[OUTPUT],
                poison=None if attempt.poison != attempt.poison else attempt.poison,
                backwards=attempt.backwards,
                alive=[each.name for each in alive],
                setting=attempt.mode.setting,
            )
        )
        if not reply.get("verdict"):
            self._take("forward", attempt)
        return reply

    def _call(self, attempt: Attempt) -> wire.Arguments:
        arguments, inputs = self._problem(attempt).arguments, self.slots[attempt].inputs
        call = call_of(self.problem.op, arguments, inputs)
        call.differentiable = list(attempt.mode.differentiable)
        if attempt.other:
            call.kept = sorted(self.problem.other.unchanged)
        return call

    def backward(self, attempt: Attempt) -> Reply:
        """Have an output differentiated and the gradients written to this attempt's place."""
        slots = self.slots[attempt]
        reply = self.worker.ask(
            wire.Backward(
                attempt=attempt.name,
                grad_output=slots.inputs["upstream"],
                results={name: slots.results[name] for name in self.names("backward", attempt)},
            )
        )
        if not reply.get("verdict") and None not in reply.values():
            self._take("backward", attempt)
        return reply

    def _take(self, direction: Direction, attempt: Attempt) -> None:
        """Copy results at once: their memory stays the process's to write."""
        self.answered[direction].add(attempt)
        for name in self.names(direction, attempt):
            self._delivered[name, attempt] = self._present(name, attempt)

    def _present(self, name: str, attempt: Attempt) -> torch.Tensor:
        slot = self.slots[attempt].results[name]
        return self.problem.kept(self.memory.arena.tensor(slot))

    def result(self, name: str, attempt: Attempt) -> torch.Tensor:
        """Return the copy of a result that was made when the process delivered it."""
        return self._delivered[name, attempt]

    def later(self, name: str, attempt: Attempt) -> torch.Tensor | Reply:
        """Return a result as its call holds it now, or the failure of that request."""
        slot = self.slots[attempt].results[name]
        reply = self.worker.ask(wire.Deliver(attempt=attempt.name, name=name, result=slot))
        return reply if reply.get("verdict") else self._present(name, attempt)

    def conflict(self, attempt: Attempt, direction: Direction) -> str:
        """Return two programs that conflict, "" for none; the call's results are dropped."""
        self.stage_inputs(attempt)
        reply = self.worker.ask(
            wire.Conflicts(
                call=self._call(attempt),
                grad_output=self.slots[attempt].inputs["upstream"],
                names=self.names(direction) if direction == "backward" else [],
            )
        )
        return "" if "verdict" in reply else str(reply.get(direction, ""))
