"""The solution's timed calls on changing inputs, and the results that the harness checks.

Before each sample the inputs change in place, so that a result kept from an earlier call is wrong.
They change on the timed stream, so that work on another stream reads the old values. The results of
one sample, drawn at random, go back to the harness, which knows the right ones.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch

LARGEST_SHIFT = 1 << 40


@dataclass(frozen=True)
class TimedCall:
    """One input of the rotation, with the call that takes it."""

    forward: Callable[[], torch.Tensor]
    wanted: list[torch.Tensor]
    """The inputs that take a gradient."""
    upstream: torch.Tensor
    memory: list[torch.Tensor]
    """The storage of each tensor that changes, `[elements, bytes of an element]`."""
    results: dict[str, torch.Tensor]
    """Where to keep the results, by name, the output first; empty if they are not to be kept."""


class Rotation:
    """Several inputs of one shape, taken in turn."""

    def __init__(
        self,
        calls: list[TimedCall],
        backward: bool,
        check: Callable[[torch.Tensor], None] = lambda output: None,
    ) -> None:
        """Copy the inputs as they are drawn, to change them later.

        Args:
            calls: One call for each input.
            backward: A run takes the gradients too.
            check: Raises if an output is not acceptable.
        """
        self.kept: dict[str, int] = {}
        """The index of the call whose results were kept, and the shift of its inputs."""
        self._calls, self._backward, self._check = calls, backward, check
        self._drawn = [[torch.cat((m, m)) for m in call.memory] for call in calls]
        self._turn = itertools.cycle(range(len(calls)))
        self._shifts = [0] * len(calls)
        self._latest = 0
        self._recent: deque[tuple[torch.Tensor, ...]] = deque(maxlen=len(calls) + 1)
        self._chance, self._samples = random.Random(), 0

    @property
    def forwards(self) -> list[Callable[[], torch.Tensor]]:
        """The forward of each call."""
        return [call.forward for call in self._calls]

    def renew(self) -> None:
        """Shift every element of the inputs to another place, by an unforeseeable distance."""
        for index, call in enumerate(self._calls):
            self._shifts[index] = shift = self._chance.randrange(LARGEST_SHIFT)
            for memory, drawn in zip(call.memory, self._drawn[index], strict=True):
                if count := len(memory):
                    memory.copy_(drawn[shift % count : shift % count + count])

    def run(self) -> None:
        """Make the next call, with its backward where that is timed."""
        call, output = self._forward()
        self._recent.append(_with_gradients(call, output) if self._backward else (output,))

    def begin(self) -> Callable[[], None]:
        """Run forward of the next call and return its backward."""
        call, output = self._forward()
        return lambda: self._recent.append(_with_gradients(call, output))

    def _forward(self) -> tuple[TimedCall, torch.Tensor]:
        self._latest = index = next(self._turn)
        call = self._calls[index]
        return call, call.forward()

    def keep(self) -> None:
        """Check the latest output, and keep the results of one sample among all.

        Each sample has the same chance to be the one kept in the end. An exception of the check
        is passed on.
        """
        self._check(self._recent[-1][0])
        if not self._calls[self._latest].results:
            return
        self._samples += 1
        if self._chance.randrange(self._samples):
            return
        self.kept = {"call": self._latest, "shift": self._shifts[self._latest]}
        targets = self._calls[self._latest].results.values()
        for target, result in zip(targets, self._recent[-1], strict=True):
            target.copy_(result.detach())

    @property
    def shared(self) -> bool:
        """Whether two outputs that were alive at the same time lie in the same memory."""
        places = [result.data_ptr() for results in self._recent for result in results[:1]]
        return len({place for place in places if place}) < sum(map(bool, places))


def _with_gradients(call: TimedCall, output: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return output, *torch.autograd.grad(output, call.wanted, call.upstream)
