"""The solution's timed calls on changing inputs, and the results that the harness checks.

Before each sample the inputs change in place, so that a result kept from an earlier call is wrong.
They change on the timed stream, so that work on another stream reads the old values: each input is
rotated, so that its elements move to the front, and those that leave the front come in at the end.
No copy of a large input is kept for that, only a buffer for a piece. A timed call that changes an
input leaves its trace for all later ones; the harness draws the inputs again and compares them.

The results of one call of each round, drawn once the call has returned, go back to the harness,
which knows the right ones. One set of memory holds them, whichever call is drawn.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.autograd.graph import increment_version

from common.sandbox import memory, timed_callables
from common.sandbox.dice import below
from common.sandbox.failures import Refused

Results = tuple[torch.Tensor, ...]
"""The output, and the gradients where backward is timed."""
ALIVE = range(5, 18)
"""The numbers of calls whose results live at once before the samples: a ring of buffers shows."""
LARGEST_SHIFT = 1 << 40
PIECE = 16 << 20
"""The bytes up to which an input is copied whole in order to move it. A larger one moves by at most
so many bytes at a time, and by at least half of them, so that its pieces are few."""


# --- inputs that move -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Changing:
    """An input that changes between samples."""

    tensor: torch.Tensor
    """The solution's own view of it, whose version a change increments."""
    memory: torch.Tensor
    """Its storage as bytes, `[elements, bytes of an element]`."""
    unit: int = 1
    """The elements that move together: one, or those of a row."""

    @functools.cached_property
    def count(self) -> int:
        """The number of elements; Tensor.__len__ takes longer than the rest of a shift."""
        return self.memory.shape[0]

    @functools.cached_property
    def large(self) -> bool:
        """Whether it moves in pieces; a row may be longer than a piece."""
        return self.unit == 1 and self.memory.numel() > PIECE

    def distance(self, shift: int) -> int:
        """Return the elements by which a shift of its call moves it."""
        return shift * self.unit % max(self.count, 1)


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
        copies = [memory.repeat(2, 1, 1) for memory in self._memories]
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
        increment_version([call.tensor for call in itertools.chain.from_iterable(self._calls)])

    def _move_small(self, shifts: Sequence[int]) -> None:
        """Copy each input out, twice in a row, and back from its new start.

        All are copied at once, since many small copies one by one would take longer.
        """
        if not self._small:
            return
        torch._foreach_copy_(self._halves, [memory for memory in self._memories for _ in range(2)])
        moved = [
            twice.narrow(0, each.distance(shifts[index]), each.count)
            for (index, each), twice in zip(self._small, self._twice, strict=True)
        ]
        torch._foreach_copy_(self._memories, moved)


def _drawn(call: Sequence[Changing]) -> int:
    """Return a random shift; large inputs can move by a piece at most."""
    widest = max([changing.memory.shape[1] for changing in call if changing.large], default=0)
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


# --- calls on them --------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimedCall:
    """One input of the rotation, with the call that takes it."""

    forward: Callable[[], torch.Tensor]
    wanted: list[torch.Tensor]
    """The inputs that take a gradient."""
    grad_output: torch.Tensor
    changing: Sequence[Changing] = ()


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
        slots: Results = (),
    ) -> None:
        """Begin with the inputs as they are drawn.

        Args:
            calls: One call for each input.
            backward: A run takes the gradients too.
            check: Raises if an output is not acceptable.
            slots: The memory to keep the results of one call in, the output's first; empty if none
                are to be kept.
        """
        self._calls, self._backward, self._check, self._slots = calls, backward, check, slots
        self._inputs = tuple(_span(each.memory) for call in calls for each in call.changing)
        self.shifts = Shifts([call.changing for call in calls])
        self._next = 0
        self._alive: list[Made] = []
        self._graphs: list[timed_callables.Captured] = []
        self._kept: dict[str, int] | None = None
        self._chances = 0

    def __len__(self) -> int:
        """Return the number of inputs."""
        return len(self._calls)

    @property
    def keeps(self) -> bool:
        """Whether results are kept for the harness."""
        return bool(self._slots)

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
        self._graphs = timed_callables.captured([call.forward for call in self._calls[:2]])
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
        self.shifts.shift()

    # --- results ----------------------------------------------------------------------------------

    def keep(self) -> None:
        """Check one of the calls since the inputs changed, and keep its results with some chance.

        Each sample of a round has the same chance to be the one whose results are kept in the end.

        Raises:
            Refused: The output is not acceptable, or results of several calls lie in the same
                memory.
        """
        made = self._drawn_of()
        self._check(made.results[0])
        if self.keeps:
            self.refuse_shared()
            self._keep_perhaps(made)

    def keep_in_passing(self) -> None:
        """Keep the results of one of the calls with the same chance; check their class alone."""
        if self.keeps:
            self._refuse_lazy()
            self._keep_perhaps(self._drawn_of())

    def _keep_perhaps(self, made: Made) -> None:
        """Write a call's results to the slots now; the next replay overwrites its own."""
        self._chances += 1
        if below(self._chances):
            return
        for slot, result in zip(self._slots, made.results, strict=False):
            slot.copy_(result.detach())
        self._kept = {"call": made.call, "shift": self.shifts.totals[made.call]}

    def _drawn_of(self) -> Made:
        """Return one of the calls since the inputs changed, drawn at random."""
        return self._alive[below(len(self._alive))]

    def delivered(self) -> dict[str, int] | None:
        """Return the call whose results were kept since the last time, and its inputs' shift.

        None where no result was to be kept.
        """
        kept, self._kept, self._chances = self._kept, None, 0
        return kept

    def forget(self) -> None:
        """Free the results of all calls; those that were kept are written already."""
        self._alive.clear()

    def free_graphs(self) -> None:
        """Keep the values of the results, and free all that a backward of them would need."""
        self._refuse_lazy()
        self._alive = [
            Made(made.call, tuple(result.detach() for result in made.results))
            for made in self._alive
        ]

    def refuse_shared(self) -> None:
        """Raise Refused, TAMPERED, where kept results of several calls lie in the same memory."""
        if not self.keeps:
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


def run_at_once(ours: Rotation, most: int) -> None:
    """Make calls whose results live at once, at most so many.

    The first shows their size: together they take half of the free memory at most. Where that does
    not hold a second one, there is none.
    """
    calls = min(ALIVE.start + below(len(ALIVE)), max(most, 2))
    if first := memory.taken(ours.run):
        room = memory.available() - first.peak
        calls = min(calls, 1 + max(room, 0) // (2 * max(first.kept, 1)))
    for _ in range(calls - 1):
        ours.run()


def peak_memory(ours: Rotation) -> int | None:
    """Return the bytes that a call takes beyond inputs and results; None on a CPU.

    What the solution has held since an earlier call, such as a workspace, does not count.
    """
    ours.forget()
    taken = memory.taken(ours.run)
    results = [result for made in ours._alive for result in made.results if ours._is_fresh(result)]
    ours.forget()
    size = sum(end - start for start, end in _merged(results))
    return None if taken is None else max(taken.peak - size, 0)


def _with_gradients(call: TimedCall, output: torch.Tensor) -> Results:
    return output, *torch.autograd.grad(output, call.wanted, call.grad_output)


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
