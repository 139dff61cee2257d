"""The calls that are timed, on inputs that change, and their results.

Before each sample every input is copied anew from an original, with its elements rotated by a
distance that nobody can foresee: `abcdefg` becomes `cdefgab`. A result kept from an earlier call is
then wrong. The copy runs on the timed stream, so that work on another stream reads the old values.
Once the calls of a sample have returned, one is drawn at random, and the harness compares its
results with the expected ones.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import urandom
from typing import Any

import torch
from torch.autograd.graph import increment_version

from common.arena import extent
from common.gradients import outputs_of
from common.sandbox import backend
from common.sandbox.session import check_class
from common.verdicts import Failure

Runnable = Callable[[], object]
Results = tuple[torch.Tensor, ...]
"""The outputs, followed by the gradients if backward is timed."""
ALIVE = range(5, 18)
"""The possible numbers of calls whose results are alive at once before the samples; this detects a
solution that reuses a ring of output buffers."""
LARGEST_SHIFT = 1 << 40
GRAPHS = 2
"""The number of calls that are captured as CUDA graphs, to be replayed in turns."""
SCARCE = 1 / 8
"""The share of the GPU's memory below which free memory is little."""


def below(count: int) -> int:
    """Return a random integer in `range(count)`, which a solution can neither foresee nor repeat.

    `count` is far below 2^64.
    """
    return int.from_bytes(urandom(8), "little") % count


@dataclass(frozen=True)
class Changing:
    """An input that changes between samples."""

    tensor: torch.Tensor
    """The tensor that the solution receives; a change increments its version."""
    memory: torch.Tensor
    """The tensor's storage as integers, `[elements]`."""
    original: torch.Tensor
    """The elements that the harness drew, twice in a row, `[2 * elements]`."""
    unit: int = 1
    """The elements that move as a unit: 1, or the length of a row."""

    def rotated(self, shift: int) -> torch.Tensor:
        """Return the elements after a shift: a part of the original."""
        count = self.memory.shape[0]  # Tensor.__len__ takes longer
        start = shift * self.unit % max(count, 1)
        return self.original[start : start + count]


@dataclass(frozen=True)
class TimedCall:
    """A call of the rotation, with its inputs."""

    forward: Callable[[], Any]
    wanted: Sequence[torch.Tensor] = ()
    """The inputs whose gradient is computed."""
    upstream: Results = ()
    changing: Sequence[Changing] = ()


class Rotation:
    """Calls on several inputs of one shape, made in turn."""

    def __init__(
        self,
        calls: Sequence[TimedCall],
        backward: bool = False,
        check: Callable[[Results], None] = lambda outputs: None,
        slots: Results = (),
    ) -> None:
        """Make no call yet; there is one for each input.

        `check` raises if an output is not acceptable. `slots` is the memory for the results of one
        call, the output's first; empty to keep none.
        """
        self._calls, self._backward, self._check, self.slots = calls, backward, check, slots
        self.shifts = [0] * len(calls)
        """How far each call's inputs are rotated."""
        inputs = [changing for call in calls for changing in call.changing]
        self._tensors = [changing.tensor for changing in inputs]
        self._memories = [changing.memory for changing in inputs]
        self._spans = [*map(extent, self._memories)]
        self._cycle = itertools.cycle(enumerate(calls))
        self._turns: Iterator[tuple[int, TimedCall]] = self._cycle
        self.alive: list[tuple[int, Results]] = []
        """The index of each call since the inputs changed, with its results."""
        self._graphs: list[tuple[torch.cuda.CUDAGraph, Results]] = []
        self._kept: dict[str, int] | None = None
        self._chances = 0

    # --- calls ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Make the next call, with its backward if backward is timed."""
        index, call = next(self._turns)
        results = outputs_of(call.forward())
        if self._backward:
            results += torch.autograd.grad(results, call.wanted, call.upstream)
        self.alive.append((index, results))

    def capture(self) -> bool:
        """Capture forward of some calls as CUDA graphs; return whether this succeeds.

        A call that waits for the GPU is detected before, since a failed capture leaves torch's
        default random generator unusable in this process. The limits use their own.
        """
        forwards = [call.forward for call in self._calls[:GRAPHS]]
        try:
            torch.cuda.set_sync_debug_mode("error")
            for forward in forwards:
                forward()
            torch.cuda.set_sync_debug_mode("default")
            for forward in forwards:
                graph = torch.cuda.CUDAGraph()
                # a failed capture does not restore the current stream by itself
                with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph):
                    outputs = outputs_of(forward())
                self._graphs.append((graph, outputs))
        except Exception:  # the solution or torch may raise anything; then no replay is timed
            self._graphs = []
        finally:
            torch.cuda.set_sync_debug_mode("default")
            torch.cuda.synchronize()
        return bool(self._graphs)

    def replay(self) -> None:
        """Replay the next graph in turn."""
        index = next(self._turns)[0] % len(self._graphs)
        graph, outputs = self._graphs[index]
        graph.replay()
        self.alive.append((index, outputs))

    # --- inputs -----------------------------------------------------------------------------------

    def stay(self) -> None:
        """Make the following calls on one input, until the inputs change."""
        self._turns = itertools.repeat(next(self._cycle))

    def renew(self) -> None:
        """Free the results, and change all inputs unpredictably, on the current stream."""
        self.alive, self._turns = [], self._cycle
        self.shifts = [below(LARGEST_SHIFT) for _ in self._calls]
        if self._memories:
            rotated = [
                changing.rotated(shift)
                for call, shift in zip(self._calls, self.shifts, strict=True)
                for changing in call.changing
            ]
            torch._foreach_copy_(self._memories, rotated)
            increment_version(self._tensors)

    # --- results ----------------------------------------------------------------------------------

    def keep(self, in_passing: bool = False) -> None:
        """Check a random call since the inputs changed, and perhaps keep its results.

        The n-th sample's results replace the kept ones with probability 1/n, so that each sample
        of a round has the same chance. They are copied now, since the next replay of a graph
        overwrites them. With `in_passing`, only the class of kept results is checked.
        """
        index, results = self.alive[below(len(self.alive))]
        if not in_passing:
            self._check(results[: len(self._calls[index].upstream)])
            self.refuse_shared()
        self._chances += 1
        if not self.slots or below(self._chances):
            return
        for slot, result in zip(self.slots, results, strict=False):
            check_class(result)
            slot.copy_(result.detach())
        self._kept = {"call": index, "shift": self.shifts[index]}

    def report(self) -> dict[str, Any]:
        """Return `kept` and `shifts` as `timed_requests.TakeSamples` says; begin a new round."""
        kept, self._kept, self._chances = self._kept, None, 0
        return {"kept": kept, "shifts": self.shifts}

    def forget(self) -> None:
        """Free the results of all calls; kept results are already copied to the slots."""
        self.alive = []

    def refuse_shared(self) -> None:
        """Raise Failure, TAMPERED, if live results of several calls lie in the same memory."""
        fresh = ([*filter(self._is_fresh, results)] for _, results in self.alive)
        if self.slots and overlap(fresh):
            raise Failure("TAMPERED", "the results of several calls lie in the same memory")

    def _is_fresh(self, result: torch.Tensor) -> bool:
        """Return whether a result lies outside the inputs; a gradient may be the upstream one."""
        address = result.data_ptr()
        return not any(start <= address < end for start, end in self._spans)

    # --- memory -----------------------------------------------------------------------------------

    def run_at_once(self, max_calls: int) -> None:
        """Make at most `max_calls` calls, or two if it is less, whose results are alive at once.

        The first call shows their size; the others take at most half of the memory then free.
        """
        calls = min(ALIVE.start + below(len(ALIVE)), max(max_calls, 2))
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()  # 0 on a CPU
        self.run()
        if (taken := torch.cuda.memory_allocated() - before) > 0:
            calls = min(calls, 1 + available() // (2 * taken))
        for _ in range(calls - 1):
            self.run()


def overlap(calls: Iterable[Sequence[torch.Tensor]]) -> bool:
    """Return whether results of different calls overlap; results of the same call may overlap."""
    furthest, owner = 0, -1
    results = [(*extent(result), index) for index, call in enumerate(calls) for result in call]
    for start, end, index in sorted(span for span in results if span[0] < span[1]):
        if start < furthest and index != owner:
            return True
        if end > furthest:
            furthest, owner = end, index
    return False


# --- GPU memory, as torch's allocator counts it ---------------------------------------------------


def available() -> int:
    """Return the bytes that are left beside the most that tensors took since the last reset."""
    free, total = torch.cuda.mem_get_info()
    reserved = torch.cuda.memory_reserved()
    allowed = int(torch.cuda.get_per_process_memory_fraction() * total) - reserved
    return max(max(min(free, allowed), 0) + reserved - torch.cuda.max_memory_allocated(), 0)


def give_back(share: float = 1.0) -> None:
    """Wait for the GPU; release torch's cache if less than this share of the memory is free."""
    backend.synchronize()
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        if free < share * total:
            gc.collect(1)  # the reference cycles of results are young
            torch.cuda.empty_cache()
