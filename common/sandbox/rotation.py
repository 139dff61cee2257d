"""The solution's timed calls on changing inputs, and the results that the harness checks.

Before each sample the inputs change in place, so that a result kept from an earlier call is wrong.
They change on the timed stream, so that work on another stream reads the old values. An input
changes by a rotation of its elements: `abcdefg` becomes `cdefgab`. A large input is rotated through
a small buffer, without a copy of the input. If a timed call changes an input, the input stays wrong
in all later calls; the harness draws the inputs again and compares them.

Once the calls of a round have returned, one call is drawn at random, and its results go back to the
harness, which knows the expected results. The same slots hold the results of any call.
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
"""The output, followed by the gradients if backward is timed."""
ALIVE = range(5, 18)
"""The possible numbers of calls whose results are alive at once before the samples; this detects a
solution that reuses a ring of output buffers."""
LARGEST_SHIFT = 1 << 40
PIECE = 16 << 20
"""The bytes up to which a rotation copies the whole input. A larger input moves by at most `PIECE`
bytes at a time, and by at least half of that, so that it needs few copies."""


# --- inputs that move -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Changing:
    """An input that changes between samples."""

    tensor: torch.Tensor
    """The tensor that the solution receives; a change increments its version."""
    memory: torch.Tensor
    """The tensor's storage as bytes, `[elements, bytes of an element]`."""
    unit: int = 1
    """The elements that move as a unit: 1, or the length of a row."""

    @functools.cached_property
    def count(self) -> int:
        """The number of elements. Cached: Tensor.__len__ takes longer than the rest of a shift."""
        return self.memory.shape[0]

    @functools.cached_property
    def large(self) -> bool:
        """Whether the input moves in pieces; a row may be longer than a piece, so rows do not."""
        return self.unit == 1 and self.memory.numel() > PIECE

    def distance(self, shift: int) -> int:
        """Return the number of elements by which a shift of the call moves this input."""
        return shift * self.unit % max(self.count, 1)


class Shifts:
    """The inputs of several calls, and how far each call's inputs have moved so far."""

    def __init__(self, calls: Sequence[Sequence[Changing]]) -> None:
        """Allocate the buffers; `calls` holds the inputs of each call."""
        self._calls = calls
        self.totals = [0] * len(calls)
        """The total shift of each call's inputs, since the inputs were drawn."""
        inputs = [(index, changing) for index, call in enumerate(calls) for changing in call]
        self._large = [(index, changing) for index, changing in inputs if changing.large]
        self._small = [(index, changing) for index, changing in inputs if not changing.large]
        self._memories = [changing.memory for _, changing in self._small]
        doubled = [memory.repeat(2, 1, 1) for memory in self._memories]
        self._doubled = [copies.flatten(0, 1) for copies in doubled]
        self._halves = [half for copies in doubled for half in copies.unbind()]
        self._piece = torch.empty(0, dtype=torch.uint8)
        if self._large:
            self._piece = self._large[0][1].memory.new_empty(PIECE)

    def shift(self) -> None:
        """Move all inputs by unpredictable distances, on the current stream."""
        shifts = [_draw_shift(call) if call else 0 for call in self._calls]
        self.totals = [total + shift for total, shift in zip(self.totals, shifts, strict=True)]
        self._move_small(shifts)
        for index, changing in self._large:
            rotate(changing.memory, changing.distance(shifts[index]), self._piece)
        inputs = itertools.chain.from_iterable(self._calls)
        increment_version([changing.tensor for changing in inputs])

    def _move_small(self, shifts: Sequence[int]) -> None:
        """Copy each small input twice into a buffer, and copy it back from its new start.

        For example, `abc` becomes `bca` by the buffer `abcabc`. All inputs are copied by one call,
        since many small copies would take longer.
        """
        if not self._small:
            return
        torch._foreach_copy_(self._halves, [memory for memory in self._memories for _ in range(2)])
        rotated = [
            doubled.narrow(0, changing.distance(shifts[index]), changing.count)
            for (index, changing), doubled in zip(self._small, self._doubled, strict=True)
        ]
        torch._foreach_copy_(self._memories, rotated)


def _draw_shift(call: Sequence[Changing]) -> int:
    """Return a random shift; a large input can move by a piece at most."""
    widest = max([changing.memory.shape[1] for changing in call if changing.large], default=0)
    if not widest:
        return below(LARGEST_SHIFT)
    half = PIECE // widest // 2
    return half + below(half) + 1


def rotate(memory: torch.Tensor, distance: int, buffer: torch.Tensor) -> None:
    """Move the elements `distance` places to the front, and the first elements to the end.

    The source and the target of a copy never overlap. For example, with a distance of 2, `abcdefg`
    becomes `cdefgab` by the buffer `ab` and the pieces `cd`, `ef` and `g`.

    Args:
        memory: Bytes, `[elements, bytes of an element]`.
        distance: At least 1, and at most the number of elements.
        buffer: Memory for at least `distance` elements, as bytes.
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
    """A call of the rotation, with its inputs."""

    forward: Callable[[], torch.Tensor]
    wanted: list[torch.Tensor]
    """The inputs whose gradient is computed."""
    grad_output: torch.Tensor
    changing: Sequence[Changing] = ()


class FinishedCall(NamedTuple):
    """The results of a call that has returned."""

    call: int
    """The index of the call in the rotation."""
    results: Results


class Rotation:
    """Calls on several inputs of one shape, made in turn."""

    def __init__(
        self,
        calls: list[TimedCall],
        backward: bool,
        check: Callable[[torch.Tensor], None] = lambda output: None,
        slots: Results = (),
    ) -> None:
        """Allocate the buffers; the inputs have not moved yet.

        Args:
            calls: One call for each input.
            backward: A run also computes the gradients.
            check: Raises if an output is not acceptable.
            slots: The memory for the kept results of one call, the output's first; empty to keep
                no results.
        """
        self._calls, self._backward, self._check, self._slots = calls, backward, check, slots
        inputs = itertools.chain.from_iterable(call.changing for call in calls)
        self._inputs = tuple(_span(changing.memory) for changing in inputs)
        self.shifts = Shifts([call.changing for call in calls])
        self._next = 0
        self._alive: list[FinishedCall] = []
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
        """Make the next call, with its backward if backward is timed."""
        index = self._take_turn()
        call = self._calls[index]
        output = call.forward()
        results = _with_gradients(call, output) if self._backward else (output,)
        self._alive.append(FinishedCall(index, results))

    def begin(self) -> Callable[[], None]:
        """Run forward of the next call and return its backward."""
        index = self._take_turn()
        call = self._calls[index]
        output = call.forward()
        return lambda: self._alive.append(FinishedCall(index, _with_gradients(call, output)))

    def capture(self) -> bool:
        """Capture forward of two calls as CUDA graphs; return whether this succeeds."""
        self._graphs = timed_callables.captured([call.forward for call in self._calls[:2]])
        return bool(self._graphs)

    def replay(self) -> None:
        """Replay the next graph in turn."""
        index = self._take_turn() % len(self._graphs)
        graph = self._graphs[index]
        graph.replay()
        self._alive.append(FinishedCall(index, (graph.output,)))

    def _take_turn(self) -> int:
        index = self._next
        self._next = (index + 1) % len(self._calls)
        return index

    # --- inputs -----------------------------------------------------------------------------------

    def renew(self) -> None:
        """Free the results, and shift all inputs by unpredictable distances."""
        self._alive.clear()
        self.shifts.shift()

    # --- results ----------------------------------------------------------------------------------

    def keep(self) -> None:
        """Check a random call since the inputs changed, and perhaps keep its results.

        All samples of a round have the same probability that their results are kept in the end.

        Raises:
            Refused: The output is not acceptable, or results of several calls lie in the same
                memory.
        """
        finished_call = self._draw_call()
        self._check(finished_call.results[0])
        if self.keeps:
            self.refuse_shared()
            self._keep_perhaps(finished_call)

    def keep_in_passing(self) -> None:
        """Perhaps keep the results of a random call, as `keep` does; check only their class."""
        if self.keeps:
            self._refuse_lazy()
            self._keep_perhaps(self._draw_call())

    def _keep_perhaps(self, finished_call: FinishedCall) -> None:
        """Copy a call's results to the slots with probability 1/n at the n-th sample.

        They are copied now, since the next replay of a graph overwrites the graph's results.
        """
        self._chances += 1
        if below(self._chances):
            return
        for slot, result in zip(self._slots, finished_call.results, strict=False):
            slot.copy_(result.detach())
        index = finished_call.call
        self._kept = {"call": index, "shift": self.shifts.totals[index]}

    def _draw_call(self) -> FinishedCall:
        """Return a random call among the calls since the inputs changed."""
        return self._alive[below(len(self._alive))]

    def delivered(self) -> dict[str, int] | None:
        """Return the call whose results were kept, and its inputs' shift, and begin a new round.

        None if no results were kept.
        """
        kept, self._kept, self._chances = self._kept, None, 0
        return kept

    def forget(self) -> None:
        """Free the results of all calls; kept results are already copied to the slots."""
        self._alive.clear()

    def free_graphs(self) -> None:
        """Free the autograd graphs of the results, but not their values."""
        self._refuse_lazy()
        self._alive = [
            FinishedCall(index, tuple(result.detach() for result in results))
            for index, results in self._alive
        ]

    def refuse_shared(self) -> None:
        """Raise Refused, TAMPERED, if live results of several calls lie in the same memory."""
        if not self.keeps:
            return
        self._refuse_lazy()
        if overlap([list(filter(self._is_fresh, results)) for _, results in self._alive]):
            raise Refused("TAMPERED", "the results of several calls lie in the same memory")

    def _refuse_lazy(self) -> None:
        """Raise Refused, TAMPERED, if a result's class could compute the values later."""
        for _, results in self._alive:
            for result in results:
                if type(result) is not torch.Tensor:
                    reason = f"a result is a {type(result).__name__}, which may not hold its values"
                    raise Refused("TAMPERED", reason)

    def _is_fresh(self, result: torch.Tensor) -> bool:
        """Return whether a result lies outside the inputs; a gradient may be the upstream one."""
        address = result.data_ptr()
        return not any(start <= address < end for start, end in self._inputs)


def run_at_once(rotation: Rotation, max_calls: int) -> None:
    """Make at most `max_calls` calls, or two if it is less, whose results are alive at once.

    The first call shows the size of the results. The results of the other calls take at most half
    of the memory that is then free; there may be no second call.
    """
    calls = min(ALIVE.start + below(len(ALIVE)), max(max_calls, 2))
    if first := memory.taken(rotation.run):
        free = memory.available() - first.peak
        calls = min(calls, 1 + max(free, 0) // (2 * max(first.kept, 1)))
    for _ in range(calls - 1):
        rotation.run()


def peak_memory(rotation: Rotation) -> int | None:
    """Return the bytes that a call allocates beyond its results; None on a CPU.

    Memory that the solution keeps from an earlier call, such as a workspace, does not count.
    """
    rotation.forget()
    taken = memory.taken(rotation.run)
    fresh = [
        result for _, results in rotation._alive for result in results if rotation._is_fresh(result)
    ]
    rotation.forget()
    size = sum(end - start for start, end in _merged(fresh))
    return None if taken is None else max(taken.peak - size, 0)


def _with_gradients(call: TimedCall, output: torch.Tensor) -> Results:
    return output, *torch.autograd.grad(output, call.wanted, call.grad_output)


def overlap(calls: Iterable[Sequence[torch.Tensor]]) -> bool:
    """Return whether results of different calls overlap; results of the same call may overlap."""
    spans = sorted(span for call in calls for span in _merged(call))
    return any(end > start for (_, end), (start, _) in itertools.pairwise(spans))


def _merged(results: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """Return the spans of one call's results, with overlapping spans merged."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(_span(result) for result in results if result.numel()):
        if merged and start < merged[-1][1]:
            start, end = merged[-1][0], max(end, merged.pop()[1])
        merged.append((start, end))
    return merged


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return a tensor's first address and the address after its last element."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    extent = sum((size - 1) * stride for size, stride in sizes) + 1 if tensor.numel() else 0
    return tensor.data_ptr(), tensor.data_ptr() + extent * tensor.element_size()
