"""The timed calls of a case: their inputs in the memory shared with a process, and their seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from common.arena import Arena, Slot, is_shifted
from common.draws import entropy
from common.grading.exchange import CallSlots, call_json, reserve
from common.grading.problem import Drawn, call_tensors
from common.grading.worker import Worker
from common.ops._draw import draw
from common.spec import Case, Op
from common.wire import Reply


@dataclass(frozen=True)
class LaidCalls:
    """Calls of one shape whose inputs lie in the memory shared with a process.

    The inputs are there alone. Whoever needs them as they were drawn draws them again.
    """

    draw: Callable[[int], Drawn]
    """Returns the inputs of a seed, the same bits each time."""
    arena: Arena
    seeds: list[int]
    inputs: list[dict[str, Slot]]
    """Those of each call by name, the upstream gradient's too."""
    results: dict[str, Slot]
    """The memory that the results of one call at a time are kept in."""
    calls: list[Reply]
    """Their JSON."""

    def changed(self, shifts: list[int]) -> str | None:
        """Describe the first input that is not what was drawn, moved by its call's shift."""
        for seed, slots, call, shift in zip(
            self.seeds, self.inputs, self.calls, shifts, strict=True
        ):
            for name, tensor in call_tensors(*self.draw(seed)).items():
                distance = shift * call["changing"].get(name, 0)
                if not is_shifted(self.arena.bytes_of(slots[name]), tensor, distance):
                    return f"{name} changed in a timed call"
        return None


def lay_calls(
    op: Op[Any],
    case: Case,
    device: str,
    worker: Worker,
    count: int,
    results: Mapping[str, torch.Tensor] | None = None,
) -> LaidCalls:
    """Draw so many calls, each from a seed of its own, and lay them with room for these results."""

    def drawn(seed: int) -> Drawn:
        return draw(op, case, seed, device)

    seeds = [entropy() for _ in range(count)]
    first = drawn(seeds[0])
    arena, slots = _reserve(worker, first, count, results or {})
    inputs = [each.inputs for each in slots]
    calls = [_lay(op, arena, first, inputs[0])]
    del first  # one call's inputs are alive at a time
    calls += [
        _lay(op, arena, drawn(seed), each) for seed, each in zip(seeds[1:], inputs[1:], strict=True)
    ]
    return LaidCalls(drawn, arena, seeds, inputs, slots[0].results, calls)


def _reserve(
    worker: Worker, like: Drawn, count: int, results: Mapping[str, torch.Tensor]
) -> tuple[Arena, list[CallSlots]]:
    """Reserve memory for calls of one shape; the first has the results."""
    nothing: dict[str, torch.Tensor] = {}
    tensors = [call_tensors(*like)] * count
    return reserve(worker, tensors, [results, *[nothing] * (count - 1)])


def _lay(op: Op[Any], arena: Arena, drawn: Drawn, slots: dict[str, Slot]) -> Reply:
    """Copy a call's inputs to their slots and return its JSON."""
    for name, tensor in call_tensors(*drawn).items():
        arena.put(slots[name], tensor)
    return call_json(op, drawn[0], slots)
