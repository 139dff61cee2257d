"""Shared memory whose tensors lie between guard bytes, and the checks of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from common.arena import Arena, Slot, content, slot_like, words
from common.grading.calls import CallSlots


class GuardedMemory:
    """One case's inputs and results, with guard bytes around them.

    The guard bytes lie between the tensors, and between the elements of a view, and differ from one
    attempt to the next: `| guard | t | guard | freqs | guard | upstream | guard | output 0 | ...`.
    """

    def __init__(
        self, arena: Arena, sets: Sequence[CallSlots], inputs: Mapping[str, torch.Tensor]
    ) -> None:
        """Find the bands and gaps; `lay` fills them.

        Args:
            arena: The memory.
            sets: The places of the tensors, one after the other in the memory.
            inputs: The inputs by name, from which the gaps between their elements are known.
        """
        self.arena = arena
        self._bands = list(self._guard_bands(sets))
        self._gaps = {name: gaps_of(tensor) for name, tensor in inputs.items()}
        self._guard = 0
        self._laid: dict[Slot, tuple[str, torch.Tensor]] = {}

    def _guard_bands(self, sets: Iterable[CallSlots]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each guard band with the name of the tensor before it, which the first lacks."""
        yield "", self.arena.band_before_all()
        for slots in sets:
            for name, slot in slots.inputs.items():
                yield name, self.arena.band_after(slot)
            for (name, _), slot in slots.results.items():
                yield name, self.arena.band_after(slot)

    def lay(self, slots: CallSlots, inputs: Mapping[str, torch.Tensor], guard: int) -> None:
        """Write the guard bytes, and inputs to their places.

        The inputs in other places are written again too: a change by one call is found once.
        """
        self._guard = guard
        for _, band in self._bands:
            band.fill_(guard)
        for name, tensor in inputs.items():
            laid, gaps = content(tensor), self._gaps[name]
            laid = laid if gaps is None else laid.masked_fill(gaps, guard)
            self._laid[slots.inputs[name]] = name, laid
        for slot, (_, laid) in self._laid.items():
            self.arena.content(slot).copy_(laid)

    def changed(self) -> str | None:
        """Return the first argument with other bytes in its memory than were laid there."""
        for slot, (name, laid) in self._laid.items():
            present = self.arena.content(slot)
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
