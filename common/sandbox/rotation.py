"""The solution's timed calls on changing inputs, and the results that the harness checks.

Before each sample the inputs change in place, so that a result kept from an earlier call is wrong.
They change on the timed stream, so that work on another stream reads the old values. The results of
one call of each turn, drawn once the call has returned, go back to the harness, which knows the
right ones.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.autograd.graph import increment_version

from common.sandbox import contestants
from common.sandbox.dice import below
from common.sandbox.failures import Refused

LARGEST_SHIFT = 1 << 40
Results = tuple[torch.Tensor, ...]
"""The output, and the gradients where backward is timed."""


@dataclass(frozen=True)
class Changing:
    """An input that changes between samples."""

    name: str
    tensor: torch.Tensor
    """The solution's own view of it, whose version a change increments."""
    memory: torch.Tensor
    """Its storage as bytes, `[elements, bytes of an element]`."""
    unit: int = 1
    """The elements that move together: one, or those of a row."""


@dataclass(frozen=True)
class TimedCall:
    """One input of the rotation, with the call that takes it."""

    forward: Callable[[], torch.Tensor]
    wanted: list[torch.Tensor]
    """The inputs that take a gradient."""
    upstream: torch.Tensor
    changing: Sequence[Changing] = ()
    results: tuple[torch.Tensor, ...] = ()
    """The memory to keep the results in, the output's first; empty if they are not to be kept."""


class Made(NamedTuple):
    """A call that was made, and its results."""

    call: int
    """The index of the call in the rotation."""
    results: Results


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
        self._calls, self._backward, self._check = calls, backward, check
        self._drawn = tuple(
            tuple(torch.cat((each.memory, each.memory)) for each in call.changing) for call in calls
        )
        self._inputs = tuple(_span(each.memory) for call in calls for each in call.changing)
        self._shifts = [0] * len(calls)
        self._next = 0
        self._alive: list[Made] = []
        self._graphs: list[contestants.Captured] = []
        self._kept: dict[str, int] | None = None
        self._chances = 0

    def __len__(self) -> int:
        """Return the number of inputs."""
        return len(self._calls)

    # --- calls ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Make the next call, with its backward where that is timed."""
        index = self._take_turn()
        call = self._calls[index]
        output = call.forward()
        results = _with_gradients(call, output) if self._backward else (output,)
        self._alive.append(Made(index, results))

    def begin(self) -> Callable[[], None]:
        """Run forward of the next call and return its backward."""
        index = self._take_turn()
        call = self._calls[index]
        output = call.forward()
        return lambda: self._alive.append(Made(index, _with_gradients(call, output)))

    def capture(self) -> bool:
        """Capture forward of two calls as CUDA graphs; return whether that is possible."""
        self._graphs = contestants.captured([call.forward for call in self._calls[:2]])
        return bool(self._graphs)

    def replay(self) -> None:
        """Replay the graph of the next call that has one."""
        index = self._take_turn() % len(self._graphs)
        graph = self._graphs[index]
        graph.replay()
        self._alive.append(Made(index, (graph.output,)))

    def _take_turn(self) -> int:
        index = self._next
        self._next = (index + 1) % len(self._calls)
        return index

    # --- inputs -----------------------------------------------------------------------------------

    def renew(self) -> None:
        """Free the results, and shift all inputs by distances that nobody can foresee."""
        self._alive.clear()
        self._shifts = [below(LARGEST_SHIFT) for _ in self._calls]
        if targets := [each.memory for call in self._calls for each in call.changing]:
            torch._foreach_copy_(targets, list(self._shifted_inputs()))
            increment_version([each.tensor for call in self._calls for each in call.changing])

    def _shifted_inputs(self) -> Iterator[torch.Tensor]:
        for call, drawn, shift in zip(self._calls, self._drawn, self._shifts, strict=True):
            yield from map(functools.partial(_shifted, shift), call.changing, drawn)

    def _check_inputs(self, made: Made) -> None:
        """Raise Refused, MUTATED_INPUT, if the call changed an input."""
        pairs = zip(self._calls[made.call].changing, self._drawn[made.call], strict=True)
        for each, drawn in pairs:
            if not torch.equal(each.memory, _shifted(self._shifts[made.call], each, drawn)):
                raise Refused("MUTATED_INPUT", f"{each.name} changed in a timed call")

    # --- results ----------------------------------------------------------------------------------

    def keep(self) -> None:
        """Check one of the calls since the inputs changed, and keep its results with some chance.

        Each sample of a turn has the same chance to be the one whose results are kept in the end.

        Raises:
            Refused: The output is not acceptable, a call changed an input, or results of several
                calls lie in the same memory.
        """
        made = self._drawn_of()
        self._check(made.results[0])
        if not self._calls[made.call].results:
            return
        self.refuse_shared()
        if self._drawn_now():
            self._check_inputs(made)
            self._write(made)

    def keep_in_passing(self) -> None:
        """Keep the results of one of the calls with the same chance; check their class alone."""
        made = self._drawn_of()
        if not self._calls[made.call].results:
            return
        self._refuse_lazy()
        if self._drawn_now():
            self._write(made)

    def _write(self, made: Made) -> None:
        """Write a call's results to their memory now; the next replay overwrites its own."""
        for target, result in zip(self._calls[made.call].results, made.results, strict=False):
            target.copy_(result.detach())
        self._kept = {"call": made.call, "shift": self._shifts[made.call]}

    def _drawn_of(self) -> Made:
        """Return one of the calls since the inputs changed, drawn at random."""
        return self._alive[below(len(self._alive))]

    def _drawn_now(self) -> bool:
        self._chances += 1
        return not below(self._chances)

    def delivered(self) -> dict[str, int] | None:
        """Return the call whose results were kept since the last time, and its inputs' shift.

        None where no result was to be kept.
        """
        kept, self._kept, self._chances = self._kept, None, 0
        return kept

    def forget(self) -> None:
        """Free the results of all calls; those that were kept are written already."""
        self._alive.clear()

    def refuse_shared(self) -> None:
        """Raise Refused, TAMPERED, where kept results of several calls lie in the same memory."""
        if not self._calls[0].results:
            return
        self._refuse_lazy()
        if overlap([list(filter(self._is_fresh, made.results)) for made in self._alive]):
            raise Refused("TAMPERED", "the results of several calls lie in the same memory")

    def _refuse_lazy(self) -> None:
        """Raise Refused, TAMPERED, where a result is of a class that could compute it later."""
        for made in self._alive:
            for result in made.results:
                if type(result) is not torch.Tensor:
                    reason = f"a result is a {type(result).__name__}, which may not hold its values"
                    raise Refused("TAMPERED", reason)

    def _is_fresh(self, result: torch.Tensor) -> bool:
        """Return whether a result is not in an input; a gradient may be the upstream one."""
        place = result.data_ptr()
        return not any(first <= place < end for first, end in self._inputs)


def _with_gradients(call: TimedCall, output: torch.Tensor) -> Results:
    return output, *torch.autograd.grad(output, call.wanted, call.upstream)


def _shifted(shift: int, each: Changing, drawn: torch.Tensor) -> torch.Tensor:
    count = len(each.memory)
    start = shift * each.unit % count if count else 0
    return drawn[start : start + count]


def overlap(calls: Iterable[Sequence[torch.Tensor]]) -> bool:
    """Return whether results of two calls have bytes in common; those of one call may have."""
    spans = sorted(span for call in calls for span in _merged(call))
    return any(end > start for (_, end), (start, _) in itertools.pairwise(spans))


def _merged(results: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """Return the spans of one call's results, those with bytes in common as one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(_span(result) for result in results if result.numel()):
        if merged and start < merged[-1][1]:
            start, end = merged[-1][0], max(end, merged.pop()[1])
        merged.append((start, end))
    return merged


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the addresses from a tensor's first element up to the end of its last one."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    extent = sum((size - 1) * stride for size, stride in sizes) + 1 if tensor.numel() else 0
    return tensor.data_ptr(), tensor.data_ptr() + extent * tensor.element_size()
