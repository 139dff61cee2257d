"""Inputs that move in place between samples, so that nobody can use a result of an earlier one.

Each input is rotated: its elements move to the front, and those that leave the front come in at the
end. No copy of a large input is kept for that, only a buffer for a piece. A timed call that changes
an input leaves its trace for all later ones; the harness draws the inputs again and compares them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.autograd.graph import increment_version

from common.sandbox.dice import below

LARGEST_SHIFT = 1 << 40
PIECE = 16 << 20
"""The bytes up to which an input is copied whole in order to move it. A larger one moves by at most
so many bytes at a time, and by at least half of them, so that its pieces are few."""


@dataclass(frozen=True)
class Changing:
    """An input that changes between samples."""

    tensor: torch.Tensor
    """The solution's own view of it, whose version a change increments."""
    memory: torch.Tensor
    """Its storage as bytes, `[elements, bytes of an element]`."""
    unit: int = 1
    """The elements that move together: one, or those of a row."""

    @property
    def large(self) -> bool:
        """Whether it moves in pieces; a row may be longer than a piece."""
        return self.unit == 1 and self.memory.numel() > PIECE

    def distance(self, shift: int) -> int:
        """Return the elements by which a shift of its call moves it."""
        return shift * self.unit % max(len(self.memory), 1)


class Shifts:
    """The inputs of several calls, and how far each call's have moved since they were drawn."""

    def __init__(self, calls: Sequence[Sequence[Changing]]) -> None:
        """Allocate the buffers; `calls` holds the inputs of each call."""
        self._calls = calls
        self.totals = [0] * len(calls)
        """The shift of each call's inputs so far."""
        several = [(index, each) for index, call in enumerate(calls) for each in call]
        self._large = [(index, each) for index, each in several if each.large]
        self._small = [(index, each) for index, each in several if not each.large]
        self._memories = [each.memory for _, each in self._small]
        copies = [each.repeat(2, 1, 1) for each in self._memories]
        self._twice = [each.flatten(0, 1) for each in copies]
        self._halves = [half for each in copies for half in each.unbind()]
        self._piece = torch.empty(0, dtype=torch.uint8)
        if self._large:
            self._piece = self._large[0][1].memory.new_empty(PIECE)

    def shift(self) -> None:
        """Move all inputs by distances that nobody can foresee, queued on the current stream."""
        shifts = [_drawn(call) if call else 0 for call in self._calls]
        self.totals = [total + shift for total, shift in zip(self.totals, shifts, strict=True)]
        self._move_small(shifts)
        for index, each in self._large:
            rotate(each.memory, each.distance(shifts[index]), self._piece)
        increment_version([each.tensor for each in itertools.chain.from_iterable(self._calls)])

    def _move_small(self, shifts: Sequence[int]) -> None:
        """Copy each input out, twice in a row, and back from its new start.

        All are copied at once, since many small copies one by one would take longer.
        """
        if not self._small:
            return
        torch._foreach_copy_(self._halves, [each for each in self._memories for _ in range(2)])
        moved = [
            twice.narrow(0, each.distance(shifts[index]), len(each.memory))
            for (index, each), twice in zip(self._small, self._twice, strict=True)
        ]
        torch._foreach_copy_(self._memories, moved)


def _drawn(call: Sequence[Changing]) -> int:
    """Return a random shift; large inputs can move by a piece at most."""
    widest = max((each.memory.shape[1] for each in call if each.large), default=0)
    if not widest:
        return below(LARGEST_SHIFT)
    half = PIECE // widest // 2
    return half + below(half) + 1


def rotate(memory: torch.Tensor, distance: int, buffer: torch.Tensor) -> None:
    """Move the elements `distance` places to the front, and the first ones to the end.

    No piece that is copied overlaps the place that it is copied to. For example, with a distance
    of 2, `abcdefg` becomes `cdefgab` by the buffer `ab` and the pieces `cd`, `ef` and `g`.

    Args:
        memory: Bytes, `[elements, bytes of an element]`.
        distance: At least 1, and at most the number of elements.
        buffer: Memory for so many elements, as bytes.
    """
    first = memory[:distance]
    saved = buffer[: first.numel()].view_as(first).copy_(first)
    rest = len(memory) - distance
    for start in range(0, rest, distance):
        end = min(start + distance, rest)
        memory[start:end].copy_(memory[start + distance : end + distance])
    memory[rest:].copy_(saved)
