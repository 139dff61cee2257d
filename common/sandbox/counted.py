"""Count the work of one board case at its true shape, in a solution's process.

PyTorch operators are counted from the shapes of the tensors that they read and write, and are not
computed. Of each kernel launch, a sample of programs runs: one drawn from each of several strata
(ranges of programs), which stands for all programs of its stratum. If the sums over all programs
are not certain to a few percent, a sample of more strata runs. Of a long loop, the first iteration,
the last and one drawn from those between run, which stands for all of these.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from triton._C.libtriton import ir
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

from common import wire
from common.sandbox.failures import judge
from common.sandbox.interpreter import bounds, language
from common.sandbox.interpreter.bounds import WATCH, WatchedLaunch
from common.sandbox.interpreter.explanation import READS, WRITES
from common.sandbox.interpreter.operations import Operation, wrap
from common.sandbox.interpreter.spans import Act, Mask, Span, selected
from common.sandbox.interpreter.together import Dependent, Differs, ProgramGroup, shape_of
from common.sandbox.session import Session
from common.sandbox.shape_only import PRODUCTS, directions, tensors_of, written_by
from common.sandbox.target import Grid
from common.spec import DIRECTIONS
from common.wire import Reply


def at_full_shape(session: Session, request: wire.AtFullShape) -> Reply:
    """Count forward and backward of a board case, or of the op's large case, at its true shape.

    Returns:
        The steps (operators and launches, in order) of each direction; those of `backward` begin
        with forward's. If the solution fails or does not support the case, also a verdict, its
        reason and the direction; a failure may be due to the missing data.
    """
    case = session.solution.op.of_params(request.case)
    counting, counted = Counting(is_large=case == session.solution.op.large), Reply()
    seed, steps = zlib.crc32(case.name.encode()), counting.steps
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(wrap(interpreter.GridExecutor, "__call__", counting.launch))
            stack.callback(wrap(language, "running", counting.iterations))
            calls = directions(session, case, seed, lambda *ran: steps.append(operator(*ran)))
            for direction in calls:
                counted[direction] = list(steps)
    except Exception as error:
        counted |= judge(error) | {"direction": DIRECTIONS[len(counted)]}
    return counted


# --- PyTorch operators ----------------------------------------------------------------------------

aten = torch.ops.aten
OVERWRITING = {aten.copy_, aten.zero_, aten.fill_, aten.normal_, aten.uniform_}
"""Operators that overwrite their first argument without reading it."""


def operator(func: Any, args: Any, kwargs: Any, inputs: list[torch.Tensor], result: Any) -> Reply:
    """Return the work of an operator as JSON."""
    packet, outputs = func._overloadpacket, list(tensors_of(result))
    mutated = {*map(id, written_by(func, args, kwargs))} if packet in OVERWRITING else ()
    count_flops = PRODUCTS.get(packet)
    floating = next((each for each in [*outputs, *inputs] if each.is_floating_point()), None)
    return {
        "step": "operator",
        "operator": str(packet).removeprefix("aten."),
        "read": _bytes(each for each in inputs if id(each) not in mutated),
        "written": _bytes(outputs),
        "flops": int(count_flops(*args, **kwargs, out_val=result)) if count_flops else 0,
        "dtype": str(floating.dtype if floating is not None else "").removeprefix("torch."),
    }


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes in memory; a repeated tensor counts once, as what a stride of 0 repeats."""
    nbytes: dict[object, int] = {}
    for each in tensors:
        dims = [*zip(each.shape, each.stride(), strict=True)]
        elements = math.prod(size for size, stride in dims if stride or not size)
        nbytes[each.data_ptr(), *dims] = elements * each.element_size()
    return sum(nbytes.values())


# --- a sample of programs -------------------------------------------------------------------------

SECTOR = 32
"""The smallest transfer between a GPU's caches and its memory, in bytes."""
STRATA = 16, 32, 64, 256
"""The numbers of equal strata of a launch's samples, of which the first that settles is taken."""
SETTLED = 0.05
"""The share of a launch's bytes or FLOPs, two standard errors, up to which a sample has settled."""
PLACE_BITS, PLACES = np.uint64(48), np.uint64((1 << 48) - 1)
"""The low bits of a key, which hold a place, and their mask; the others hold a program's row. A
place is twice a sector's number, plus 1 if the sector is stored."""


def strata(programs: int, number: int) -> np.ndarray:
    """Return the edges of a launch's strata, about as many as `number`: [strata + 1].

    The first program and the last are strata. Those of the first programs grow from 1, since these
    often have another part of the work, and may have most of it.
    """
    equal = np.linspace(1, programs - 1, number + 1).astype(int)
    growing = 1 << np.arange((programs // number).bit_length())
    return np.unique(np.concatenate([[0, programs], equal, growing]))


class Sample:
    """A program of each stratum of a launch, drawn alike each time, and the work of each.

    An array has a row for each program. A tensor of the launch is a region, as is the memory before
    and after each.
    """

    def __init__(
        self,
        edges: np.ndarray,
        spans: Sequence[Span],
        complete: bool = False,
        earlier: Sample | None = None,
    ) -> None:
        """Draw a program of each stratum between these edges; the spans are the tensors' memory.

        In a `complete` sample each iteration runs, and kernels may store integers. A program of the
        `earlier` sample, which has run, stands for its stratum here too.
        """
        sectors = sorted({(span.first // SECTOR, -(-span.end // SECTOR)) for span in spans})
        self._sectors = np.array(sectors, np.uint64).ravel()
        self._sizes = np.full((len(self._sectors) + 1, 1), math.inf)
        self._sizes[1::2, 0] = [SECTOR * (end - first) for first, end in sectors]
        self.complete = complete
        self.counts = np.diff(edges)
        """The number of programs that each one stands for."""
        self.indices = np.random.default_rng(int(edges[-1])).integers(edges[:-1], edges[1:])
        """Their indices in the launch's order, in which x changes fastest."""
        self.nbytes = np.zeros((len(self.counts), len(self._sizes), 2))
        """Bytes of the sectors that are loaded and stored, [programs, regions, 2], scaled to all
        iterations; a sector that the program touches again counts once."""
        self.flops = defaultdict[str, np.ndarray](lambda: np.zeros(len(self.counts)))
        """FLOPs of `tl.dot`, by the operands' dtype."""
        self.rounds = np.zeros(len(self.counts))
        """Sequential waits for memory: all loads up to a store are one, but the load of a scalar,
        on which an address or a branch depends, is a wait of its own."""
        self.new = np.arange(len(self.counts))
        """The rows of the programs that have not run."""
        if earlier:
            at = np.searchsorted(earlier.indices, edges[:-1])
            known = np.append(earlier.indices, edges[-1])[at] < edges[1:]
            self.new, at = self.new[~known], at[known]
            self.indices[known] = earlier.indices[at]
            self.nbytes[known], self.rounds[known] = earlier.nbytes[at], earlier.rounds[at]
            for dtype, flops in earlier.flops.items():
                self.flops[dtype][known] = flops[at]

    def uncertain(self) -> float:
        """Return two standard errors of the launch's least certain amount, as a share of it.

        The deviation within a stratum is estimated from the programs of its neighbours.
        """
        counts, flops = self.counts[:, None], sum(self.flops.values(), 0 * self.counts)
        amounts = np.column_stack([self.nbytes.sum(1), flops])
        apart = np.pad(np.diff(amounts, axis=0) ** 2 / 2, ((1, 1), (0, 0)))
        between = (counts > 1) * counts**2 * (apart[:-1] + apart[1:]) / 2
        return float((2 * np.sqrt(between.sum(0)) / np.maximum((counts * amounts).sum(0), 1)).max())

    def by_region(self, keys: np.ndarray, rows: int) -> np.ndarray:
        """Return the number of sectors that each program loads and stores: [rows, regions, 2]."""
        regions = np.searchsorted(self._sectors, (keys & PLACES) >> 1, side="right")
        at = len(self._sizes) * (keys >> PLACE_BITS).astype(int) + regions
        shape = rows, len(self._sizes), 2
        found = np.bincount(2 * at + (keys & 1).astype(int), minlength=math.prod(shape))
        return found.reshape(shape)

    def total(self) -> Reply:
        """Return the work of all programs; of a tensor, at most its memory reaches the launch."""
        nbytes, uncertain = np.tensordot(self.counts, self.nbytes, 1), self.uncertain()
        read, written = np.minimum(nbytes, self._sizes).sum(0).tolist()
        return {
            "uncertain": round(uncertain, 3) if uncertain > SETTLED else 0.0,
            "fetched": round(nbytes.sum(0).tolist()[0]),
            "read": round(read),
            "written": round(written),
            "rounds": round(float(self.counts @ self.rounds / self.counts.sum()), 2),
            "flops": {
                dtype: round(float(self.counts @ each))
                for dtype, each in sorted(self.flops.items())
            },
        }


# --- launches and their accesses ------------------------------------------------------------------

MAX_FULL_LAUNCH = 4096
"""The most programs of a launch that stores integers, for which all programs have to run."""
ITERATIONS = 3
"""The iterations that stand for a longer loop."""
WHOLE_LOOP = 64
"""The most iterations of a loop that runs whole because it only loads integers: a search
carries its place from one iteration to the next, and addresses depend on it."""
MOST_LANES, LANES_OF_AN_ACCESS = 1 << 31, 1 << 15
"""The most lanes whose accesses and products are counted for a call, about half a minute's, and the
lanes that take as long as an access itself. Work does not depend on the machine's load."""


class WritesIntegers(BaseException):
    """A kernel, whose handlers may not catch this, stores integers.

    They may decide later sizes: all programs of the launch have to run.
    """


@dataclass
class Counting:
    """Counts the launches of one call."""

    is_large: bool
    """Whether only offsets that wrap are looked for: few programs run, which may store integers."""
    steps: list[Reply] = field(default_factory=list)
    """The work of each launch as JSON, in order."""
    _lanes: int = 0

    def launch(self, _: Any, executor: Any, *args: Any, **kwargs: Any) -> None:
        """Count a launch in place of its run."""
        with bounds.launched(executor, args, kwargs) as (launch, sizes):
            if math.prod(sizes) > 0:
                named = {"step": "launch", "kernel": executor.fn.__name__, "grid": sizes}
                self.steps.append(named | self._sample(launch, sizes).total())

    def iterations(self, _: Any, numbers: range) -> Iterator[int]:
        """Yield the numbers of a loop's iterations that run."""
        return self._running.iterations(numbers)

    def _sample(self, launch: WatchedLaunch, sizes: Grid) -> Sample:
        """Return a sample that has run: all programs if they store integers."""
        programs = math.prod(sizes)
        sample = Sample(strata(programs, STRATA[0]), launch.spans)
        try:
            self._run(sample, launch, sizes)
            for number in () if self.is_large else STRATA[1:]:
                if sample.uncertain() <= SETTLED:
                    break
                sample = Sample(strata(programs, number), launch.spans, earlier=sample)
                self._run(sample, launch, sizes)
        except WritesIntegers:
            if programs > MAX_FULL_LAUNCH:
                raise NotImplementedError(f"{programs} programs store integers") from None
            sample = Sample(np.arange(programs + 1), launch.spans, complete=True)
            self._run(sample, launch, sizes)
        return sample

    def _run(self, sample: Sample, launch: WatchedLaunch, sizes: Grid) -> None:
        """Run the programs of a sample, as many at once as do the same."""
        waiting = [*sample.new[:, None]] if sample.complete else [sample.new]
        while waiting:
            rows = waiting.pop()
            try:
                self._running = Programs(self, sample, rows, sizes)
                self._running.run(launch)
            except Differs as differs:
                waiting += [rows[each] for each in differs.args[0]]
            except (Dependent, Exception):
                if len(rows) == 1:
                    raise
                waiting.extend(rows[:, None])

    def spend(self, lanes: int) -> None:
        """Count the lanes of an access or a product.

        Raises:
            NotImplementedError: They are more than MOST_LANES with those of the call so far.
        """
        self._lanes += lanes + LANES_OF_AN_ACCESS
        if self._lanes > MOST_LANES:
            raise NotImplementedError("counting the call's work takes too many accesses")


class Programs(ProgramGroup):
    """Programs of a sample that run at once and count their work, as a mode of the launch.

    Only a program that runs by itself stores.
    """

    def __init__(self, counting: Counting, sample: Sample, rows: np.ndarray, sizes: Grid) -> None:
        """Take the programs' rows in the sample, and the sizes of the grid."""
        places = np.stack(np.unravel_index(sample.indices[rows], sizes, order="F"), 1)
        super().__init__(places, np.arange(len(rows)), {})
        self._counting, self._sample, self._in_sample = counting, sample, rows
        self._alone = len(rows) == 1
        self._weight = 1.0
        """The number of iterations for which the running one stands."""
        self._others = 0
        """The number of accesses and products so far, less the loads of integers."""
        self._pending = list[np.ndarray]()
        self._known = _ordered()
        """Keys in order, of the places that the programs have touched."""
        for amounts in (sample.nbytes, sample.rounds, *sample.flops.values()):
            amounts[rows] = 0  # of a run at once that failed
        self._waits = False
        """Whether nothing has waited for the latest load."""

    def run(self, launch: WatchedLaunch) -> None:
        """Run the programs.

        Raises:
            Dependent: They cannot run at once.
        """
        if self._alone:
            interpreter.interpreter_builder.set_grid_idx(*self._programs[0].tolist())
        bounds.run(launch, self)
        if self.failed and not self._alone:
            raise Dependent
        self._settle()

    def _call(self, name: str, operation: Operation, args: tuple[Any, ...]) -> Any:
        self._accessing = self._numbers  # all make an access whose operands do not vary
        if name == "create_dot":
            return self._product(operation, *args)
        return operation(*args) if self._alone else super()._call(name, operation, args)

    def access(self, verb: str, pointers: TensorHandle, mask: Mask, act: Act) -> Any:
        """Count an access, and make it; an atomic update counts as a load and a store.

        Raises:
            Dependent: It is out of bounds, which a program that runs by itself reports.
            WritesIntegers: All programs of the launch have to run, but only a sample does.
            NotImplementedError: The call accesses more than MOST_LANES.
        """
        if self._alone:
            WATCH.check(verb, pointers, mask)
        elif WATCH.launch is None or WATCH.launch.first_outside(pointers, mask) is not None:
            raise Dependent
        addresses, rows = pointers.data, self._accessing
        if rows.ndim == 1:
            rows = rows.reshape(-1, *[1] * addresses.ndim)
            addresses = np.broadcast_to(addresses, (len(rows), *addresses.shape))
        is_scalar = addresses.size == rows.size
        self._counting.spend(addresses.size)
        floating = pointers.get_element_ty().is_floating()
        if verb != READS and not (self._sample.complete or self._counting.is_large or floating):
            raise WritesIntegers
        rows = selected(np.broadcast_to(rows, addresses.shape), mask).ravel().astype(np.uint64)
        sectors = selected(addresses, mask).ravel() // np.uint64(SECTOR)
        loads = _ordered(rows << PLACE_BITS | sectors << np.uint64(1))
        if verb != WRITES:
            self._pending.append(loads)
            self._sample.rounds[self._in_sample] += self._weight * (not self._waits)
        if verb != READS:
            self._pending.append(loads | 1)
        self._waits = verb == READS and not is_scalar
        self._others += floating or verb != READS
        unread = floating and verb == WRITES and not self._sample.complete
        return act() if verb == READS or (self._alone and not unread) else None

    def _settle(self) -> None:
        """Count the sectors of the accesses since the last time, which have one weight."""
        new = np.setdiff1d(_ordered(*self._pending), self._known, assume_unique=True)
        self._known = _ordered(self._known, new)
        self._pending.clear()
        sectors = self._sample.by_region(new, len(self._in_sample))
        self._sample.nbytes[self._in_sample] += SECTOR * sectors * self._weight

    def _product(
        self, dot: Operation, builder: Any, a: Any, b: Any, d: Any, precision: Any, *rest: Any
    ) -> Any:
        """Count a product of blocks; compute it only if its result is an integer."""
        (*batch, m, k), (*_, n) = shape_of(a), shape_of(b)
        dtype = a.dtype.scalar.name
        if dtype == "fp32":
            dtype = "tf32" if precision != ir.INPUT_PRECISION.IEEE else "fp32"
        flops = 2 * math.prod(batch) * m * n * k * self._weight
        self._sample.flops[dtype][self._in_sample] += flops
        self._others += 1
        self._counting.spend(math.prod(batch) * (m + n) * k * len(self._in_sample))
        return d if d.dtype.scalar.is_floating() else dot(builder, a, b, d, precision, *rest)

    def iterations(self, numbers: range) -> Iterator[int]:
        """Yield the numbers of the iterations that run; each has the weight of its range.

        Loops of the same length draw the same iterations.
        """
        outer, others, total = self._weight, self._others, len(numbers)
        is_whole = self._sample.complete or total <= ITERATIONS
        edges = range(total + 1) if is_whole else [0, 1, total - 1, total]
        ranges, dice = [*itertools.pairwise(edges)], random.Random(total)
        try:
            while ranges:
                (first, end), *ranges = ranges
                self._settle()
                self._weight = outer * (end - first)
                yield numbers[dice.randrange(first, end)]
                if first == 0 and self._others == others and total <= WHOLE_LOOP:
                    ranges = [*itertools.pairwise(range(1, total + 1))]
        finally:
            self._settle()
            self._weight = outer


def _ordered(*keys: np.ndarray) -> np.ndarray:
    """Return the distinct keys of all arrays in order; long ordered parts take little time."""
    found = np.sort(np.concatenate([np.array([], np.uint64), *keys]), kind="stable")
    distinct: np.ndarray = found[np.diff(found, prepend=found[:1] + 1) != 0]
    return distinct
