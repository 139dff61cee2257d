"""Count the work of one board case at its true shape, in a solution's process.

PyTorch operators are counted from the shapes of the tensors that they read and write, and are not
computed. Of each kernel launch, a sample of programs runs and stands for all its programs: the
first, the last, and one drawn from each of several strata (ranges of programs) between them. The
strata are halved until the sums over all programs are certain to a few percent. Of a long loop, the
first iteration, the last and one drawn from each half between them run. The weight of a program or
of an iteration is the number that it stands for: of 1,000 iterations, the first and the last have
the weight 1, the others 499.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import random
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from triton._C.libtriton import ir
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from common import wire
from common.sandbox.failures import judge
from common.sandbox.interpreter import bounds
from common.sandbox.interpreter.bounds import WATCH, OutOfBounds, WatchedLaunch
from common.sandbox.interpreter.explanation import READS, WRITES
from common.sandbox.interpreter.language import Loop
from common.sandbox.interpreter.operations import wrap
from common.sandbox.interpreter.spans import Span, selected
from common.sandbox.session import Session
from common.sandbox.shape_only import PRODUCTS, board_case, directions, tensors_of, written_by
from common.sandbox.target import Grid
from common.spec import Direction
from common.wire import Reply


def at_full_shape(session: Session, request: wire.AtFullShape) -> Reply:
    """Count forward and backward of a board case, or of the op's large case, at its true shape.

    Returns:
        The steps (operators and launches, in order) of each direction; those of `backward` begin
        with forward's. If the solution fails or does not support the case, also a verdict and its
        reason; a failure may be due to the missing data. If it ended at an access that was out of
        bounds because its offset wrapped, `wraps` has the direction and the reason.
    """
    large = session.solution.op.large
    is_large = large is not None and large.name == request.case
    case = large if large and is_large else board_case(session, request.case)
    counting, seed = Counting(is_large), zlib.crc32(case.name.encode())
    counted = Reply()
    direction: Direction = "forward"

    def ran(*call: Any) -> None:
        counting.steps.append(operator(*call))

    try:
        with counting.instead_of_launches():
            for direction in directions(session, case, seed, ran):
                if direction == "backward":
                    counted["forward"] = list(counting.steps)
        counted[direction] = counting.steps
    except Exception as error:
        counted |= judge(error)
        cause: BaseException = error
        while cause.__cause__:
            cause = cause.__cause__
        if isinstance(cause, OutOfBounds) and cause.wrapped:
            counted["wraps"] = {direction: cause.reason}
    return counted


# --- PyTorch operators ----------------------------------------------------------------------------

aten = torch.ops.aten
GATHERS = {
    aten.index, aten.index_select, aten.gather, aten.embedding, aten.take, aten.masked_select,
    aten._index_put_impl_, aten._unsafe_index, aten.take_along_dim,
}  # fmt: skip
"""Operators that read as many elements of their first argument as they return."""
SCATTERS = {
    aten.index_put_, aten.index_put, aten.index_add_, aten.index_copy_, aten.scatter_,
    aten.scatter_add_, aten.scatter_add, aten.index_add, aten.index_copy, aten.scatter,
}  # fmt: skip
"""Operators that write as many elements of their first argument as their source has."""
OVERWRITING = {aten.copy_, aten.zero_, aten.fill_, aten.normal_, aten.uniform_}
"""Operators that overwrite their first argument without reading it."""


def operator(func: Any, args: Any, kwargs: Any, inputs: list[torch.Tensor], result: Any) -> Reply:
    """Return the work of an operator as JSON."""
    packet, outputs = func._overloadpacket, list(tensors_of(result))
    written = sum({_memory_key(output): _bytes(output) for output in outputs}.values())
    mutated = {*map(id, written_by(func, args, kwargs))} if packet in OVERWRITING else ()
    read = {_memory_key(each): _bytes(each) for each in inputs if id(each) not in mutated}
    if packet in GATHERS:
        read[_memory_key(inputs[0])] = min(written, _bytes(inputs[0]))
    if packet in SCATTERS:
        read.pop(_memory_key(inputs[0]), None)
        source = max((_bytes(each) for each in inputs[1:] if each.is_floating_point()), default=0)
        written = min(written, source or written)
    count_flops = PRODUCTS.get(packet)
    floating = next((each for each in [*outputs, *inputs] if each.is_floating_point()), None)
    return {
        "step": "operator",
        "operator": str(packet).removeprefix("aten."),
        "read": sum(read.values()),
        "written": written,
        "flops": int(count_flops(*args, **kwargs, out_val=result)) if count_flops else 0,
        "dtype": str(floating.dtype if floating is not None else "").removeprefix("torch."),
        "plain": _is_plain([*inputs, *outputs]),
    }


def _memory_key(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def _bytes(tensor: torch.Tensor) -> int:
    """Return a tensor's bytes in memory; elements that a stride of 0 repeats count once."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride or not size else 1
    return elements * tensor.element_size()


def _is_plain(tensors: list[torch.Tensor]) -> bool:
    """Return whether all tensors have the same shape and strides and are dense in memory."""
    blocks = [tensor for tensor in tensors if tensor.dim()]
    forms = {(tensor.shape, tensor.stride()) for tensor in blocks}
    return len(forms) <= 1 and all(map(torch.ops.aten.is_non_overlapping_and_dense, blocks))


# --- a sample of programs -------------------------------------------------------------------------

SECTOR = 32
"""The smallest transfer between a GPU's caches and its memory, in bytes."""
PROGRAMS, MOST_PROGRAMS = 16, 256
"""The number of equal strata of a launch, and the strata from which none is halved."""
SETTLED = 0.05
"""The share of a launch's bytes or FLOPs, two standard errors, up to which a sample is settled."""
Region = tuple[tuple[int, int], bool]
"""The first sector of a tensor and the one after its last, and whether the access is a store."""
ANYWHERE = (0, 1 << 59)
"""The sectors of a pointer that belongs to no argument of the launch."""


@dataclass
class Program:
    """The work of one program; amounts are scaled to all iterations of its sampled loops."""

    sectors: dict[Region, set[int]] = field(default_factory=lambda: defaultdict(set))
    """The sectors that the iterations that ran touch."""
    nbytes: dict[Region, float] = field(default_factory=lambda: defaultdict(float))
    """Bytes of the sectors; a sector that the program touches again counts once."""
    flops: Counter[str] = field(default_factory=Counter)
    """FLOPs of `tl.dot`, by the operands' dtype."""
    rounds: float = 0
    """The number of sequential waits for memory. All loads before a store share one wait; a scalar
    load is a wait of its own, since an address or a branch depends on it."""
    variance: np.ndarray = field(default_factory=lambda: np.zeros(3))
    """The variance of `amounts` that sampled loops leave."""

    @property
    def amounts(self) -> np.ndarray:
        """The bytes that are loaded, the bytes that are stored, and the FLOPs."""
        return np.array([*loaded_and_stored(self.nbytes), sum(self.flops.values())], float)


class Stratum(NamedTuple):
    """A range of programs, of which one has run."""

    first: int
    end: int
    at: int
    program: Program

    @property
    def size(self) -> int:
        """The number of programs that the one stands for."""
        return self.end - self.first


def loaded_and_stored(nbytes: Mapping[Region, float]) -> list[float]:
    """Return the sum of the regions that are loaded, and of those that are stored."""
    return [sum(n for (_, stored), n in nbytes.items() if stored == each) for each in (False, True)]


def drawn(edges: Sequence[int], dice: random.Random) -> list[tuple[int, int, int]]:
    """Return the ranges between edges as first, end, and an index drawn between."""
    return [(first, end, dice.randrange(first, end)) for first, end in itertools.pairwise(edges)]


def sampled(
    programs: int, run: Callable[[int], Program], most: int = MOST_PROGRAMS
) -> tuple[list[Stratum], float]:
    """Run a sample of a launch's programs, drawn alike each time.

    Args:
        programs: The number of programs of the launch.
        run: Runs the program of an index.
        most: The number of strata that are not halved.

    Returns:
        The strata in order, and the share of the bytes or of the FLOPs that they leave uncertain:
        two standard errors.
    """
    dice = random.Random(programs)
    strata = [Stratum(*each, run(each[-1])) for each in drawn(_edges(programs), dice)]
    while (uncertain := _uncertain(strata)) > SETTLED and len(strata) < min(most, programs):
        strata = [half for each in strata for half in _halves(each, run, dice)]
    return strata, uncertain


def _halves(
    stratum: Stratum, run: Callable[[int], Program], dice: random.Random
) -> Iterator[Stratum]:
    """Yield both halves, of which one has this program and the other one that is drawn."""
    middle = (stratum.first + stratum.end) // 2
    for first, end in ((stratum.first, middle), (middle, stratum.end)):
        if first <= stratum.at < end:
            yield stratum._replace(first=first, end=end)
        elif first < end:
            at = dice.randrange(first, end)
            yield Stratum(first, end, at, run(at))


def _edges(programs: int) -> list[int]:
    """Return the edges of the first strata: equal ones, less the first and the last program.

    The strata of the first programs grow from 1, since these often have another part of the work,
    and may have most of it.
    """
    equal = {1 + part * (programs - 2) // PROGRAMS for part in range(PROGRAMS + 1)}
    growing = {1 << power for power in range((programs // PROGRAMS).bit_length())}
    return sorted({0, programs} | equal | growing)


def _uncertain(strata: Sequence[Stratum]) -> float:
    """Return two standard errors of the least certain sum, as a share of the sum.

    The deviation within a stratum is estimated from the programs of its neighbours.
    """
    amounts = np.array([each.program.amounts for each in strata])
    sizes = np.array([each.size for each in strata])[:, None]
    variances = np.array([each.program.variance for each in strata])
    if sizes.max() > 1:
        between = np.pad(np.diff(amounts, axis=0) ** 2 / 2, ((1, 1), (0, 0)), mode="edge")
        within = (between[:-1] + between[1:]) / 2
        variances = np.where(sizes > 1, sizes**2 * within, variances)
    errors = 2 * np.sqrt(variances.sum(0)) / np.maximum((sizes * amounts).sum(0), 1)
    return float(errors.max())


def total(strata: Sequence[Stratum], uncertain: float) -> Reply:
    """Return the work of all programs of a launch.

    A sector that several programs touch counts once: a launch touches at most as much memory as
    `_extent` finds, or more if a single program does, since pointers may move with the iterations
    of a loop that do not run.

    Args:
        strata: The programs that ran.
        uncertain: See `sampled`.
    """
    flops, distinct = Counter[str](), dict[Region, float]()
    nbytes: dict[Region, float] = defaultdict(float)
    for size, program in ((each.size, each.program) for each in strata):
        for dtype, amount in program.flops.items():
            flops[dtype] += size * amount
        for region, number in program.nbytes.items():
            nbytes[region] += size * number
    programs = strata[-1].end
    for region, number in nbytes.items():
        ran = [each.program for each in strata if region in each.program.nbytes]
        extent = SECTOR * _extent(region, ran, len(strata) < programs)
        distinct[region] = min(number, max(extent, *(each.nbytes[region] for each in ran)))
    read, written = map(round, loaded_and_stored(distinct))
    return {
        "sampled": len(strata),
        "uncertain": round(uncertain, 3) if uncertain > SETTLED else 0.0,
        "fetched": round(loaded_and_stored(nbytes)[0]),
        "read": read,
        "written": written,
        "flops": dict(sorted(flops.items())),
        "rounds": round(sum(each.size * each.program.rounds for each in strata) / programs, 2),
    }


def _extent(region: Region, programs: Sequence[Program], sampled: bool) -> int:
    """Return the sectors between the first and the last that a launch's programs touch.

    Of a sample, the outermost program that did not run lies as far beyond the outermost that ran as
    the second lies before it; but within the tensor.
    """
    (first, end), _ = region
    low = sorted({min(each.sectors[region]) for each in programs})[:2]
    high = sorted({max(each.sectors[region]) for each in programs})[-2:]
    if not sampled:
        return high[-1] + 1 - low[0]
    return min(2 * high[-1] - high[0] + 1, end) - max(2 * low[0] - low[-1], first)


# --- launches and their accesses ------------------------------------------------------------------

MAX_FULL_LAUNCH = 4096
"""The most programs of a launch that stores integers, for which all programs have to run."""
ITERATIONS = 4
"""The iterations that stand for a longer loop."""
WHOLE_LOOP = 64
"""The most iterations of a loop that runs whole because it only loads integers: a search
carries its place from one iteration to the next, and addresses depend on it."""
MOST_LANES, LANES_OF_AN_ACCESS = 1 << 30, 1 << 14
"""The most lanes whose accesses and products are counted for a call, about half a minute's, and the
lanes that take as long as an access itself. Work does not depend on the machine's load."""


class WritesIntegers(BaseException):
    """A kernel, whose handlers may not catch this, stores integers.

    They may decide later sizes: all programs of the launch have to run.
    """


class Counting:
    """Counts the launches of one call, as the observer of their accesses, and samples their loops.

    `steps` has the work of each launch as JSON, in order.
    """

    def __init__(self, is_large: bool) -> None:
        """Start with no launch.

        Args:
            is_large: Whether only offsets that wrap are looked for: few programs of a launch run,
                which may store integers.
        """
        self.steps: list[Reply] = []
        self._is_large = is_large
        self._weight = 1.0
        self._others = 0
        """The number of accesses and products so far, less the loads of integers."""
        self._lanes = 0

    @contextlib.contextmanager
    def instead_of_launches(self) -> Iterator[None]:
        """Count launches instead of running them."""
        with contextlib.ExitStack() as stack:
            WATCH.observer = self
            stack.callback(setattr, WATCH, "observer", None)
            for owner, name, wrapper in (
                (interpreter.GridExecutor, "__call__", self._launch),
                (InterpreterBuilder, "create_dot", self._product),
                (Loop, "__iter__", lambda _, values: self._iterations(values)),
            ):
                stack.callback(wrap(owner, name, wrapper))
            yield

    def _launch(self, _: Any, executor: Any, *args: Any, **kwargs: Any) -> None:
        with bounds.launched(executor, args, kwargs) as (launch, sizes):
            if math.prod(sizes) > 0:
                run = functools.partial(self._program, launch, sizes)
                work = total(*self._sample(math.prod(sizes), run))
                named = {"step": "launch", "kernel": executor.fn.__name__, "grid": sizes}
                self.steps.append(named | work)

    def begin_launch(self, spans: tuple[Span, ...]) -> None:
        """Start counting the programs of a launch with these spans."""
        tensors = {(span.first // SECTOR, -(-span.end // SECTOR)) for span in spans}
        self._tensors = [ANYWHERE, *sorted(tensors)]
        self._ends = np.array(self._tensors[1:], np.uint64).ravel()
        self._whole = False
        """Every program and every iteration runs, and kernels may store integers."""

    def _sample(self, programs: int, run: Callable[[int], Program]) -> tuple[list[Stratum], float]:
        """Run a sample of the programs, or all of them if they store integers; see `sampled`."""
        try:
            return sampled(programs, run, PROGRAMS if self._is_large else MOST_PROGRAMS)
        except WritesIntegers:
            if programs > MAX_FULL_LAUNCH:
                raise NotImplementedError(f"{programs} programs store integers") from None
        self._whole = True
        return [Stratum(at, at + 1, at, run(at)) for at in range(programs)], 0.0

    def _program(self, launch: WatchedLaunch, sizes: Grid, index: int) -> Program:
        """Run the program at an index of the launch order, in which x changes fastest.

        The iterations of its loops are drawn alike each time, and unlike those of other programs.
        """
        x, rest = index % sizes[0], index // sizes[0]
        interpreter.interpreter_builder.set_grid_idx(x, rest % sizes[1], rest // sizes[1])
        self._work, self._waits, self._dice = Program(), False, random.Random(index)
        bounds.run(launch)
        self._end_wait()
        return self._work

    def access(
        self, verb: str, pointers: TensorHandle, mask: np.ndarray | None, act: Callable[[], Any]
    ) -> Any:
        """Count an access and make it; an atomic update counts as a load and a store.

        Raises:
            WritesIntegers: All programs of the launch have to run, but only a sample does.
            NotImplementedError: The call accesses more than MOST_LANES.
        """
        self._spend(pointers.data.size)
        floating = pointers.get_element_ty().is_floating()
        if verb != WRITES:
            self._waits |= self._touch(pointers, mask, stores=False)
            self._others += floating
            if pointers.data.size == 1:
                self._end_wait()
        if verb != READS:
            if not (self._whole or self._is_large or floating):
                raise WritesIntegers
            self._touch(pointers, mask, stores=True)
            self._others += 1
            self._end_wait()
        return act()

    def _end_wait(self) -> None:
        """Count a wait for the loads since the last one, if there are any."""
        self._work.rounds += self._waits * self._weight
        self._waits = False

    def _touch(self, pointers: TensorHandle, mask: np.ndarray | None, stores: bool) -> bool:
        """Add the distinct sectors of an access; return whether a lane makes it."""
        sectors = selected(pointers.data, mask).ravel() // np.uint64(SECTOR)
        # the rows of a tile are in order already
        sectors = np.unique(sectors[np.diff(sectors, prepend=sectors[:1] + 1) != 0])
        ends = np.searchsorted(self._ends, sectors, side="right")
        # odd between a tensor's first sector and its end
        tensors = np.where(ends % 2, (ends + 1) // 2, 0)
        for tensor in np.unique(tensors):  # a tile may have rows of two tensors
            region = self._tensors[tensor], stores
            known = self._work.sectors[region]
            before = len(known)
            known.update(sectors[tensors == tensor].tolist())
            self._work.nbytes[region] += SECTOR * (len(known) - before) * self._weight
        return bool(sectors.size)

    def _product(
        self, dot: Any, builder: Any, a: Any, b: Any, d: Any, precision: Any, *rest: Any
    ) -> Any:
        """Count a product of blocks; compute it only if its result is an integer."""
        (*batch, m, k), n = a.data.shape, b.data.shape[-1]
        dtype = a.dtype.scalar.name
        if dtype == "fp32":
            dtype = "tf32" if precision != ir.INPUT_PRECISION.IEEE else "fp32"
        self._work.flops[dtype] += round(2 * math.prod(batch) * m * n * k * self._weight)
        self._others += 1
        self._spend(a.data.size + b.data.size)
        return d if d.dtype.scalar.is_floating() else dot(builder, a, b, d, precision, *rest)

    def _spend(self, lanes: int) -> None:
        """Count the lanes of an access or a product.

        Raises:
            NotImplementedError: They are more than MOST_LANES with those of the call so far.
        """
        self._lanes += lanes + LANES_OF_AN_ACCESS
        if self._lanes > MOST_LANES:
            raise NotImplementedError("counting the call's work takes too many accesses")

    def _iterations(self, values: Sequence[Any]) -> Iterator[Any]:
        """Yield the values of the iterations that run; each has the weight of its range."""
        outer, others, total = self._weight, self._others, len(values)
        edges: Sequence[int] = range(total + 1)
        if total > ITERATIONS and not self._whole:
            edges = [0, 1, total // 2, total - 1, total]
        waiting = drawn(edges, self._dice)
        halves: list[np.ndarray] = []
        try:
            while waiting:
                (first, end, index), *waiting = waiting
                self._weight = outer * (end - first)
                before = self._work.amounts
                yield values[index]
                if end - first > 1 and outer == 1:
                    halves.append(self._work.amounts - before)
                if index == 0 and self._others == others and total <= WHOLE_LOOP:
                    waiting = [(later, later + 1, later) for later in range(1, total)]
        finally:
            self._weight = outer
            if len(halves) == 2:
                self._work.variance += (halves[0] - halves[1]) ** 2
