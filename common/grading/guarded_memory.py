"""The memory of one case that a solution's process maps: slots for tensors, between guard bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from common.arena import Arena, content, end_of, is_far, lay_out, words
from common.grading.problem import Problem
from common.grading.worker import Worker
from common.spec import UPSTREAM
from common.wire import GARBAGE, TensorSlot


@dataclass(frozen=True)
class CallSlots:
    """The slots of one call's tensors in the shared memory."""

    inputs: dict[str, TensorSlot]
    """By argument name; the upstream gradients as `spec.upstream_of` names them."""
    results: dict[str, TensorSlot]
    """By result name: `output`, for example, or the argument's name for its gradient."""


def result_slots(problem: Problem, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Return a meta tensor for each result, from which its slot is laid out."""
    dtype, shapes = getattr(torch, problem.case.dtype), problem.shapes
    return {name: torch.empty(shapes[name], dtype=dtype, device="meta") for name in names}


Tensors = Mapping[str, torch.Tensor]
"""Tensors by name; results may be on the meta device."""


def reserve(
    worker: Worker, calls: Sequence[tuple[Tensors, Tensors]]
) -> tuple[Arena, list[CallSlots]]:
    """Reserve shared memory for the inputs and the results of several calls.

    The memory of the results is filled with GARBAGE; the memory of the inputs is not initialized.
    The worker's process maps it.
    """
    parts = [part for call in calls for part in call]
    slot_of = lay_out(
        ((index, name), tensor) for index, part in enumerate(parts) for name, tensor in part.items()
    )
    laid = [{name: slot_of[index, name] for name in part} for index, part in enumerate(parts)]
    slots = [CallSlots(*pair) for pair in zip(laid[::2], laid[1::2], strict=True)]
    arena = worker.arena(max(map(end_of, slot_of.values())))
    for reserved in slots:
        for slot in reserved.results.values():
            arena.bytes_of(slot).fill_(GARBAGE)
    return arena, slots


class GuardedMemory:
    """One case's inputs and results, with guard bytes around them.

    Guard bytes fill the bands between tensors and the gaps between a view's elements, and differ
    between attempts: `| guard | t | guard | freqs | guard | upstream | guard | output | ...`.
    """

    def __init__(self, arena: Arena, slots: Sequence[CallSlots]) -> None:
        """Locate the bands of calls, in the order of the memory; `stage` fills them."""
        self.arena = arena
        tensors = [each for call in slots for each in (*call.inputs.items(), *call.results.items())]
        self._bands = [(name, arena.band(slot)) for name, slot in [("", None), *tensors]]
        """Each guard band, with the name of the tensor before it; "" for the first band."""
        self._gaps: dict[tuple[str, torch.dtype], torch.Tensor | None] = {}
        """The gaps between the elements of an input, by its name and dtype."""
        self._guard = 0
        self._staged: dict[TensorSlot, tuple[str, torch.Tensor]] = {}

    def stage(self, slots: CallSlots, inputs: Mapping[str, torch.Tensor], guard: int) -> None:
        """Write the guard bytes, and the inputs to their slots.

        The inputs in other slots are restored too, so that a change by one call is reported once.
        """
        self._guard = guard
        for _, band in self._bands:
            band.fill_(guard)
        for name, tensor in inputs.items():
            if (name, tensor.dtype) not in self._gaps:
                self._gaps[name, tensor.dtype] = gaps_of(tensor)
            staged, gaps = content(tensor), self._gaps[name, tensor.dtype]
            staged = staged if gaps is None else staged.masked_fill(gaps, guard)
            self._staged[slots.inputs[name]] = name, staged
        for slot, (_, staged) in self._staged.items():
            self.arena.content(slot).copy_(staged)

    def changed(self) -> str | None:
        """Return the first argument whose memory differs from its staged bytes, if any."""
        for slot, (name, staged) in self._staged.items():
            present = self.arena.content(slot)
            if not torch.equal(words(present), words(staged)):
                _, is_upstream, of = name.partition(UPSTREAM)
                return "the upstream gradient" + of.replace("_", " of ") if is_upstream else name
        return None

    def overrun(self) -> str | None:
        """Describe the first write into a guard band, such as `wrote 4 bytes after t`."""
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
    """Return a mask of the storage's bytes that belong to no element, None if all bytes do.

    Return None also if the elements are gigabytes apart: the gaps of such a view have no guards.
    """
    count = tensor.untyped_storage().nbytes() // tensor.itemsize
    if count == tensor.numel() or is_far(tensor):
        return None
    gaps = torch.ones(count, dtype=torch.bool, device=tensor.device)
    gaps.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(False)
    return gaps.repeat_interleave(tensor.itemsize)
