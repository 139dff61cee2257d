"""Count the work of one board case at its true shape, in a solution's process.

PyTorch operators are counted from the shapes of the tensors that they read and write, and are not
computed. Of each kernel launch, a sample of programs runs and stands for all its programs: the
first, the last, and one drawn from each of several strata (ranges of programs) between them. A
stratum whose neighbourhood differs is split, until the sums over all programs are certain to a few
percent. Of a long loop, the first iteration, the last and one drawn from each half between them
run. The weight of a program or of an iteration is the number that it stands for: of 1,000
iterations, the first and the last have the weight 1, the others 499.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import random
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
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
from common.source import Reason
from common.spec import Direction
from common.wire import Reply


def at_full_shape(session: Session, request: wire.AtFullShape) -> Reply:
    """Count forward and backward of a board case, or of the op's large case, at its true shape.

    Returns:
        The steps (operators and launches, in order) of each direction; those of `backward` begin
        with forward's. In `wraps`, if any, the direction and the reason of the first access that is
        out of bounds because its offset wrapped. If the solution fails or does not support the
        case, also a verdict and its reason; a failure may be due to the missing data.
    """
    large = session.solution.op.large
    is_large = large is not None and large.name == request.case
    case = large if large and is_large else board_case(session, request.case)
    steps, seed = list[Reply](), zlib.crc32(case.name.encode())
    launches = Launches(steps.append, is_large)
    counted = Reply()

    def ran(*call: Any) -> None:
        steps.append(operator(*call))

    try:
        with launches.counting():
            for launches.direction in directions(session, case, seed, ran):
                if launches.direction == "backward":
                    counted["forward"] = list(steps)
        counted[launches.direction] = steps
    except Exception as error:
        counted |= judge(error)
    return counted | ({"wraps": launches.wraps} if launches.wraps else {})


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


# --- launches -------------------------------------------------------------------------------------

MAX_FULL_LAUNCH = 4096
"""The most programs of a launch that stores integers, for which all programs have to run."""


class Launches:
    """Counts the launches of one call, in order."""

    def __init__(self, add: Callable[[Reply], None], is_large: bool) -> None:
        """Start with no launches.

        Args:
            add: Receives each launch's work as JSON.
            is_large: Whether only offsets that wrap are looked for: few programs of a launch run,
                which may store integers.
        """
        self._add, self._traffic, self._is_large = add, Traffic(is_large), is_large
        self.direction: Direction = "forward"
        self.wraps: dict[str, Reason] = {}
        """The first access of a direction that is out of bounds because its offset wrapped."""

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count launches instead of running them."""
        WATCH.observer = self._traffic
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, WATCH, "observer", None)
            for owner, name, wrapper in (
                (interpreter.GridExecutor, "__call__", self._launch),
                (InterpreterBuilder, "create_dot", self._traffic.in_place_of_dot),
                (Loop, "__iter__", lambda _, values: self._traffic.iterations(values)),
            ):
                stack.callback(wrap(owner, name, wrapper))
            yield

    def _launch(self, run: Any, executor: Any, *args: Any, **kwargs: Any) -> None:
        with bounds.launched(executor, args, kwargs) as (launch, sizes):
            try:
                if math.prod(sizes) > 0:
                    work = total(*self._sample(launch, sizes))
                    named = {"step": "launch", "kernel": executor.fn.__name__, "grid": sizes}
                    self._add(named | work)
            except Exception as error:
                fault = _root(error)
                if isinstance(fault, OutOfBounds) and fault.wrapped:
                    self.wraps.setdefault(self.direction, fault.reason)
                raise fault from (None if fault is not error else error.__cause__)

    def _sample(self, launch: WatchedLaunch, sizes: Grid) -> tuple[list[Stratum], float]:
        """Run a sample of the programs, or all of them if they store integers; see `sampled`."""
        programs, run = math.prod(sizes), functools.partial(self._program, launch, sizes)
        try:
            return sampled(programs, run, 0 if self._is_large else MOST_PROGRAMS)
        except WritesIntegers:
            if programs > MAX_FULL_LAUNCH:
                raise NotImplementedError(f"{programs} programs store integers") from None
        self._traffic.whole = True
        try:
            return [Stratum(at, at + 1, at, run(at)) for at in range(programs)], 0.0
        finally:
            self._traffic.whole = False

    def _program(self, launch: WatchedLaunch, sizes: Grid, index: int) -> Program:
        """Run the program at an index of the launch order, in which x changes fastest."""
        x, rest = index % sizes[0], index // sizes[0]
        interpreter.interpreter_builder.set_grid_idx(x, rest % sizes[1], rest // sizes[1])
        work = self._traffic.begin_program(index)
        launch.program()
        self._traffic.end_wait()
        return work


def _root(error: BaseException) -> BaseException:
    """Return the error that a device function raised, without the interpreter's wrappers."""
    while isinstance(error, interpreter.InterpreterError) and error.__context__ is not None:
        error = error.__context__
    return error


# --- a sample of programs -------------------------------------------------------------------------

SECTOR = 32
"""The smallest transfer between a GPU's caches and its memory, in bytes."""
PROGRAMS, MOST_PROGRAMS = 16, 512
"""The number of equal strata of a launch, and the most programs that run of any."""
SETTLED = 0.05
"""The share of a launch's bytes or FLOPs, two standard errors, up to which a sample is settled."""
NEIGHBOURS = 7
"""The number of neighbouring programs of a sample from which a stratum's deviation is estimated."""
ITERATIONS = 4
"""The number of iterations that stand for a longer loop."""
WHOLE_LOOP = 64
"""The most iterations of a loop that runs whole because it only loads integers: a search
carries its place from one iteration to the next, and addresses depend on it."""
MOST_LANES, LANES_OF_AN_ACCESS = 1 << 30, 1 << 14
"""The most lanes whose accesses and products are counted for a call, about half a minute's, and the
lanes that take as long as an access itself. Work does not depend on the machine's load."""
Region = tuple[tuple[int, int], bool]
"""The first and the end address of a tensor, and whether the access is a store."""
ANYWHERE = (0, 1 << 62)
"""The addresses of a pointer that belongs to no argument of the launch."""


def drawn(edges: Sequence[int], dice: random.Random) -> list[tuple[int, int, int]]:
    """Return the ranges between edges as first, end, and an index drawn between."""
    return [(first, end, dice.randrange(first, end)) for first, end in itertools.pairwise(edges)]


def equal(first: int, end: int, parts: int) -> list[int]:
    """Return the edges of equal ranges; at most as many as there are indices."""
    parts = min(parts, end - first)
    return [first + part * (end - first) // parts for part in range(parts)] + [end]


class WritesIntegers(Exception):
    """A kernel stores integers, which may decide later sizes: all its programs have to run."""


@dataclass
class Program:
    """The work of one program; amounts are scaled to all iterations of its sampled loops."""

    sectors: dict[Region, set[int]] = field(default_factory=lambda: defaultdict(set))
    """The sectors that the iterations that ran touch."""
    nbytes: Counter[Region] = field(default_factory=Counter)
    """Bytes of the sectors; a sector that the program touches again counts once."""
    flops: Counter[str] = field(default_factory=Counter)
    """FLOPs of `tl.dot`, by the operands' dtype."""
    ends: dict[Region, tuple[int, int]] = field(default_factory=dict)
    """The first and the end address that any access of a region touches."""
    rounds: float = 0
    """The number of sequential waits for memory. All loads before a store share one wait; a scalar
    load is a wait of its own, since an address or a branch depends on it."""
    variance: np.ndarray = field(default_factory=lambda: np.zeros(3))
    """The variance of `amounts` that sampled loops leave."""

    @property
    def amounts(self) -> np.ndarray:
        """The bytes that are loaded, the bytes that are stored, and the FLOPs."""
        nbytes = [0.0, 0.0]
        for (_, stores), number in self.nbytes.items():
            nbytes[stores] += number
        return np.array([*nbytes, sum(self.flops.values())])


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

    def halves(self, run: Callable[[int], Program], dice: random.Random) -> Iterator[Stratum]:
        """Yield both halves, of which one has this program and the other one that is drawn."""
        middle = (self.first + self.end) // 2
        for first, end in ((self.first, middle), (middle, self.end)):
            if first <= self.at < end:
                yield Stratum(first, end, self.at, self.program)
            else:
                at = dice.randrange(first, end)
                yield Stratum(first, end, at, run(at))


def sampled(
    programs: int, run: Callable[[int], Program], most: int = MOST_PROGRAMS
) -> tuple[list[Stratum], float]:
    """Run a sample of a launch's programs, drawn alike each time.

    Where programs differ, the sample finds finer strata, of which others are then drawn: the sums
    of programs by whose work the strata were chosen would be too small or too large.

    Args:
        programs: The number of programs of the launch.
        run: Runs the program of an index.
        most: The number of strata from which none is split.

    Returns:
        The strata in order, and the share of the bytes or of the FLOPs that they leave uncertain.
    """
    run, dice, edges = functools.cache(run), random.Random(programs), _edges(programs)
    while True:
        strata = [Stratum(*each, run(each[-1])) for each in drawn(edges, dice)]
        uncertain = _variances(strata)[1]
        finer = strata if uncertain <= SETTLED else _finer(strata, run, dice, most)
        if len(finer) == len(strata):
            return strata, uncertain
        edges = [*(each.first for each in finer), programs]


def _finer(
    strata: list[Stratum], run: Callable[[int], Program], dice: random.Random, most: int
) -> list[Stratum]:
    """Return strata of which those that leave the most uncertain are split, until little is."""
    while len(strata) < most:
        variances, uncertain = _variances(strata)
        order = np.argsort(-variances)[: max(1, len(strata) // 8)]
        wide = {int(at) for at in order if strata[at].size > 1 and variances[at]}
        if uncertain <= SETTLED * 3 / 4 or not wide:
            break
        strata = [
            part
            for at, each in enumerate(strata)
            for part in (each.halves(run, dice) if at in wide else [each])
        ]
    return strata


def _edges(programs: int) -> list[int]:
    """Return the edges of the first strata.

    The strata of the first programs grow from 1, since these often have another part of the work,
    and may have most of it.
    """
    if programs <= PROGRAMS:
        return list(range(programs + 1))
    *first, last = (1 << power for power in range((programs // PROGRAMS).bit_length()))
    return [0, *first, *equal(last, programs - 1, PROGRAMS), programs]


def _variances(strata: Sequence[Stratum]) -> tuple[np.ndarray, float]:
    """Return each stratum's part of the variance of the least certain sum, and two standard errors.

    The deviation within a stratum is that of the programs that ran around it. The standard errors
    are a share of the sum.
    """
    amounts = np.array([each.program.amounts for each in strata])
    sizes = np.array([each.size for each in strata])[:, None]
    variances = np.array([each.program.variance for each in strata])
    if sizes.max() > 1:
        side = NEIGHBOURS // 2
        around = np.pad(amounts, ((side, side), (0, 0)), mode="reflect")
        windows = np.lib.stride_tricks.sliding_window_view(around, NEIGHBOURS, axis=0)
        variances = np.where(sizes > 1, sizes**2 * windows.var(axis=-1, ddof=1), variances)
    errors = 2 * np.sqrt(variances.sum(0)) / np.maximum((sizes * amounts).sum(0), 1)
    return variances[:, errors.argmax()], float(errors.max())


def total(sample: Sequence[Stratum], uncertain: float) -> Reply:
    """Return the work of all programs of a launch.

    A sector that several programs touch counts once: a launch touches at most as much memory as
    `_extent` finds, or more if a single program does, since pointers may move with the iterations
    of a loop that do not run.

    Args:
        sample: The programs that ran.
        uncertain: See `sampled`.
    """
    flops: Counter[str] = Counter()
    nbytes: Counter[Region] = Counter()
    most: Counter[Region] = Counter()
    ends: dict[Region, list[tuple[int, int]]] = defaultdict(list)
    for size, program in ((stratum.size, stratum.program) for stratum in sample):
        most |= program.nbytes
        for dtype, number in program.flops.items():
            flops[dtype] += size * number
        for region, number in program.nbytes.items():
            nbytes[region] += size * number
            ends[region].append(program.ends[region])
    programs = sample[-1].end
    distinct = {}
    for region, number in nbytes.items():
        extent = _extent(region, ends[region], len(sample) < programs)
        distinct[region] = min(number, max(extent, most[region]))
    rounds = sum(stratum.size * stratum.program.rounds for stratum in sample)
    return {
        "sampled": len(sample),
        "uncertain": round(uncertain, 3) if uncertain > SETTLED else 0.0,
        "fetched": round(sum(number for (_, stored), number in nbytes.items() if not stored)),
        "read": round(sum(number for (_, stored), number in distinct.items() if not stored)),
        "written": round(sum(number for (_, stored), number in distinct.items() if stored)),
        "flops": dict(sorted(flops.items())),
        "rounds": round(rounds / programs, 2),
    }


def _extent(region: Region, ends: Sequence[tuple[int, int]], sampled: bool) -> int:
    """Return the bytes between the first and the end address that a launch's programs touch.

    Of a sample, the outermost program that did not run lies as far beyond the outermost that ran as
    the second lies before it; but within the tensor.
    """
    (first, end), _ = region
    low, high = sorted({low for low, _ in ends})[:2], sorted({high for _, high in ends})[-2:]
    before, after = (low[-1] - low[0], high[-1] - high[0]) if sampled else (0, 0)
    before, after = min(before, max(low[0] - first, 0)), min(after, max(end - high[-1], 0))
    return high[-1] + after - (low[0] - before)


# --- one program ----------------------------------------------------------------------------------


class Traffic:
    """Counts the work of the running program, and samples its loops."""

    def __init__(self, integers: bool = False) -> None:
        """Start without a launch; `integers` allows a sample of programs to store integers."""
        self.whole = False
        """Every iteration runs, and kernels may store integers."""
        self._integers = integers
        self._weight = 1.0
        self._others = 0
        """The number of accesses and products so far, less the loads of integers."""
        self._lanes = 0
        self.begin_launch(())

    def begin_launch(self, spans: tuple[Span, ...]) -> None:
        """Start counting the programs of a launch with these spans."""
        self._tensors = sorted({(span.first, span.end) for span in spans})
        self._firsts = np.array([first for first, _ in self._tensors], np.uint64)
        self.begin_program(0)

    def begin_program(self, index: int) -> Program:
        """Start counting a program; return its work, to which each later access adds.

        The iterations of its loops are drawn alike each time, and unlike those of other programs.
        """
        self._work, self._waits, self._dice = Program(), False, random.Random(index)
        return self._work

    def end_wait(self) -> None:
        """Count a wait for the loads since the last one, if there are any."""
        self._work.rounds += self._waits * self._weight
        self._waits = False

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
                self.end_wait()
        if verb != READS:
            if not (self.whole or self._integers or floating):
                raise WritesIntegers
            self._touch(pointers, mask, stores=True)
            self._others += 1
            self.end_wait()
        return act()

    def _touch(self, pointers: TensorHandle, mask: np.ndarray | None, stores: bool) -> bool:
        """Add the distinct sectors of an access; return whether a lane makes it."""
        addresses = selected(pointers.data, mask).ravel()
        if not addresses.size:
            return False
        sectors = addresses // np.uint64(SECTOR)
        begins = np.concatenate([[True], sectors[1:] != sectors[:-1]])
        # the rows of a tile are in order already
        sectors, places = np.unique(sectors[begins], return_index=True)
        firsts = addresses[begins][places]
        tensors = np.searchsorted(self._firsts, firsts, side="right") - 1
        for tensor in np.unique(tensors):  # a tile may have rows of two tensors
            mine = tensors == tensor
            span = self._tensors[tensor] if tensor >= 0 else ANYWHERE
            known = firsts[mine][0] < span[1]
            self._add(sectors[mine].tolist(), (span if known else ANYWHERE, stores))
        return True

    def _add(self, sectors: list[int], region: Region) -> None:
        """Add sectors of a region, in order."""
        work = self._work
        before = len(work.sectors[region])
        work.sectors[region].update(sectors)
        new = len(work.sectors[region]) - before
        work.nbytes[region] += SECTOR * new * self._weight  # type: ignore[assignment]
        low, high = work.ends.get(region, (1 << 62, 0))
        work.ends[region] = min(low, SECTOR * sectors[0]), max(high, SECTOR * (sectors[-1] + 1))

    def in_place_of_dot(
        self, dot: Any, builder: Any, a: Any, b: Any, d: Any, precision: Any, *rest: Any
    ) -> Any:
        """Count a product of blocks; compute it only if its result is an integer."""
        (*batch, m, k), n = a.data.shape, b.data.shape[-1]
        dtype = a.dtype.scalar.name
        if dtype == "fp32":
            dtype = "tf32" if precision != ir.INPUT_PRECISION.IEEE else "fp32"
        self._work.flops[dtype] += round(2 * int(np.prod(batch)) * m * n * k * self._weight)
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

    # --- loops ------------------------------------------------------------------------------------

    def iterations(self, values: Sequence[Any]) -> Iterator[Any]:
        """Yield the values of the iterations that run."""
        outer, others, total = self._weight, self._others, len(values)
        few = total <= ITERATIONS or self.whole
        edges = range(total + 1) if few else [0, *equal(1, total - 1, ITERATIONS - 2), total]
        waiting = drawn(edges, self._dice)
        drawn_ones: list[np.ndarray] = []
        try:
            while waiting:
                (first, end, index), *waiting = waiting
                self._weight = outer * (end - first)
                before = self._work.amounts if end - first > 1 and outer == 1 else None
                yield values[index]
                if before is not None:
                    drawn_ones.append(self._work.amounts - before)
                if index == 0 and self._others == others and total <= WHOLE_LOOP:
                    waiting = [(later, later + 1, later) for later in range(1, total)]
        finally:
            self._weight = outer
            if len(drawn_ones) == 2:
                self._work.variance += (drawn_ones[0] - drawn_ones[1]) ** 2
