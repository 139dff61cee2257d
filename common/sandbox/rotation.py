"""The solution's timed calls, whose results are looked at too; runs in a solution's process.

Before each sample the inputs change in place, so that a result kept from an earlier call is a wrong
one, and they change on the timed stream, so that work on another one reads what was there before.
The results of one sample, drawn at random, go back to the harness, which knows what is right.
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
class Call:
    """One input of the rotation: `memory` is the storage of each tensor that changes, as rows of
    one element; `results` is where they go, by name, the first that of the output; none are kept
    where there is no place for them."""

    forward: Callable[[], torch.Tensor]
    wanted: list[torch.Tensor]
    upstream: torch.Tensor
    memory: list[torch.Tensor]
    results: dict[str, torch.Tensor]


class Rotation:
    """Several inputs of one shape, taken in turn."""

    def __init__(
        self,
        calls: list[Call],
        backward: bool,
        check: Callable[[torch.Tensor], None] = lambda output: None,
    ) -> None:
        self.kept: dict[str, int] = {}
        """Which call's results were kept, and how far its inputs were shifted."""
        self._calls, self._backward, self._check = calls, backward, check
        self._drawn = [[torch.cat((m, m)) for m in call.memory] for call in calls]
        self._turn = itertools.cycle(range(len(calls)))
        self._shifts = [0] * len(calls)
        self._latest = 0
        self._recent: deque[tuple[torch.Tensor, ...]] = deque(maxlen=len(calls) + 1)
        self._chance, self._samples = random.Random(), 0

    @property
    def forwards(self) -> list[Callable[[], torch.Tensor]]:
        return [call.forward for call in self._calls]

    def renew(self) -> None:
        """Shift every element of the inputs to another place, by as much as nobody can foresee."""
        for index, call in enumerate(self._calls):
            self._shifts[index] = shift = self._chance.randrange(LARGEST_SHIFT)
            for memory, drawn in zip(call.memory, self._drawn[index], strict=True):
                if count := len(memory):
                    memory.copy_(drawn[shift % count : shift % count + count])

    def run(self) -> None:
        """The next call, with its backward where that is timed."""
        call, output = self._forward()
        self._recent.append(_with_gradients(call, output) if self._backward else (output,))

    def begin(self) -> Callable[[], None]:
        """Forward of the next call; what comes back is its backward."""
        call, output = self._forward()
        return lambda: self._recent.append(_with_gradients(call, output))

    def _forward(self) -> tuple[Call, torch.Tensor]:
        self._latest = index = next(self._turn)
        call = self._calls[index]
        return call, call.forward()

    def keep(self) -> None:
        """Check the latest output, and perhaps keep the results: each sample's with the same chance
        in the end. Raises what the check raises."""
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
        """Do results that were there at the same time lie in the same memory?"""
        places = [result.data_ptr() for results in self._recent for result in results[:1]]
        return len({place for place in places if place}) < sum(map(bool, places))


def _with_gradients(call: Call, output: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return output, *torch.autograd.grad(output, call.wanted, call.upstream)
