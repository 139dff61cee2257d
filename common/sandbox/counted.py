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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from common.sandbox.interpreter.operations import Operation, wrap
from common.sandbox.interpreter.spans import Act, Mask, Span, selected
from common.sandbox.interpreter.together import Dependent, Differs, ProgramGroup, shape_of
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
PROGRAMS, MOST_PROGRAMS = 32, 256
"""The number of equal strata of a launch, and the strata from which none is halved."""
SETTLED = 0.05
"""The share of a launch's bytes or FLOPs, two standard errors, up to which a sample is settled."""


class Program(NamedTuple):
    """The work of one program; amounts are scaled to all iterations of its sampled loops."""

    nbytes: np.ndarray
    """Bytes of sectors by region (see `Regions`); one that the program touches again counts once.
    """
    flops: Mapping[str, float]
    """FLOPs of `tl.dot`, by the operands' dtype."""
    rounds: float
    """The number of sequential waits for memory. All loads before a store share one wait; a scalar
    load is a wait of its own, since an address or a branch depends on it."""
    variance: np.ndarray
    """The variance of `amounts` that sampled loops leave."""

    @property
    def amounts(self) -> np.ndarray:
        """The bytes that are loaded, the bytes that are stored, and the FLOPs."""
        return np.array([*self.nbytes.sum(0), sum(self.flops.values())])


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


Run = Callable[[Sequence[int]], list[Program]]
"""A function that runs the programs of some indices."""


def drawn(edges: Sequence[int], dice: random.Random) -> list[tuple[int, int, int]]:
    """Return the ranges between edges as first, end, and an index drawn between."""
    return [(first, end, dice.randrange(first, end)) for first, end in itertools.pairwise(edges)]


def sampled(programs: int, run: Run, most: int = MOST_PROGRAMS) -> tuple[list[Stratum], float]:
    """Run a sample of a launch's programs, drawn alike each time.

    Args:
        programs: The number of programs of the launch.
        run: Runs the programs of some indices.
        most: The number of strata that are not halved.

    Returns:
        The strata in order, and the share of the bytes or of the FLOPs that they leave uncertain:
        two standard errors.
    """
    dice = random.Random(programs)
    ranges, known = drawn(_edges(programs), dice), dict[int, Program]()
    while True:
        missing = [at for _, _, at in ranges if at not in known]
        known |= zip(missing, run(missing), strict=True)
        strata = [Stratum(*each, known[each[-1]]) for each in ranges]
        between, uncertain = _uncertain(strata)
        if between <= SETTLED or len(strata) >= min(most, programs):
            return strata, uncertain
        ranges = [half for each in ranges for half in _halves(*each, dice)]


def _halves(first: int, end: int, at: int, dice: random.Random) -> Iterator[tuple[int, int, int]]:
    """Yield both halves of a range, of which one keeps its index and the other one draws one."""
    middle = (first + end) // 2
    for start, stop in ((first, middle), (middle, end)):
        if start < stop:
            yield start, stop, at if start <= at < stop else dice.randrange(start, stop)


def _edges(programs: int) -> list[int]:
    """Return the edges of the first strata: equal ones, less the first and the last program.

    The strata of the first programs grow from 1, since these often have another part of the work,
    and may have most of it.
    """
    equal = {1 + part * (programs - 2) // PROGRAMS for part in range(PROGRAMS + 1)}
    growing = {1 << power for power in range((programs // PROGRAMS).bit_length())}
    return sorted({0, programs} | equal | growing)


def _uncertain(strata: Sequence[Stratum]) -> tuple[float, float]:
    """Return two standard errors of the least certain sum, as a share: of programs, and of all.

    The deviation within a stratum is estimated from the programs of its neighbours. Programs draw
    the same iterations of a loop, so their errors add up.
    """
    amounts = np.array([each.program.amounts for each in strata])
    sizes = np.array([each.size for each in strata])[:, None]
    between = np.zeros(3)
    if sizes.max() > 1:
        apart = np.pad(np.diff(amounts, axis=0) ** 2 / 2, ((1, 1), (0, 0)), mode="edge")
        between = (np.where(sizes > 1, sizes**2, 0) * (apart[:-1] + apart[1:]) / 2).sum(0)
    loops = (sizes * np.sqrt([each.program.variance for each in strata])).sum(0) ** 2
    whole = np.maximum((sizes * amounts).sum(0), 1)
    of_programs, of_all = (2 * np.sqrt(each) / whole for each in (between, between + loops))
    return float(of_programs.max()), float(of_all.max())


PLACE_BITS, PLACES = np.uint64(48), np.uint64((1 << 48) - 1)
"""The low bits of a key, which hold a place, and their mask; see `Regions`."""
NO_PLACE = np.array([], np.uint64)


class Regions:
    """The regions of a launch, and what its programs that ran touch of them.

    A tensor is two regions, one that is loaded and one that is stored. An array by region has the
    shape [1 + tensors, 2]; its first row is memory of no tensor. A place is twice a sector's
    number, plus 1 if it is stored.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        """Take the tensors' memory."""
        sectors = sorted({(span.first // SECTOR, -(-span.end // SECTOR)) for span in spans})
        self._edges = np.array(sectors, np.uint64).ravel()
        self.shape = 1 + len(sectors), 2
        sizes = [math.inf, *(SECTOR * (end - first) for first, end in sectors)]
        self._sizes = np.array(sizes)[:, None]
        self._new = np.zeros(self.shape)
        """Bytes of the sectors that no program before has touched, scaled to all iterations."""
        self._places = NO_PLACE
        """The places of each program, all in order: one that several touch is repeated."""

    def count(
        self, keys: np.ndarray, like: np.ndarray, weights: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the number of places, or the sum of their weights, in the form of `like`.

        That is an array by region or, of keys, by program and region.
        """
        edges = np.searchsorted(self._edges, (keys & PLACES) >> 1, side="right")
        # odd between a tensor's first sector and its end
        tensors = np.where(edges % 2, (edges + 1) // 2, 0)
        programs, stored = (keys >> PLACE_BITS).astype(int), (keys & 1).astype(int)
        regions = 2 * (self.shape[0] * programs + tensors) + stored
        counts: np.ndarray = np.bincount(regions, weights, like.size).reshape(like.shape)
        return counts

    def touch(self, keys: np.ndarray, parts: Sequence[tuple[np.ndarray, float]]) -> None:
        """Add what programs touch: the keys of all, and the places of parts with their weights."""
        seen = _ordered(self._places)
        for places, weight in parts:
            new = _without(places, seen)
            self._new += SECTOR * self.count(new, self._new) * weight
            seen = _ordered(seen, new)
        self._places = np.sort(np.concatenate([self._places, keys & PLACES]))

    def distinct(self, nbytes: np.ndarray, all_ran: bool) -> np.ndarray:
        """Return the least and the most bytes of the sectors that a launch touches, by region.

        The least is what the sample touches. The most is the tensor, or the sum over all programs;
        or what the sample touches and the share of the sum that is of other sectors, which is about
        that of the sectors that one program of the sample alone has touched (Good-Turing).

        Args:
            nbytes: The sum over all programs, by region.
            all_ran: Whether all programs have run.
        """
        places, counts = np.unique(self._places, return_counts=True)
        times, alone = (self.count(places, nbytes, each) for each in (counts, counts == 1))
        others = 0 if all_ran else nbytes * alone / np.maximum(times, 1)
        most = np.minimum(np.minimum(self._new + others, nbytes), self._sizes)
        return np.stack([np.minimum(SECTOR * self.count(places, nbytes), most), most])


def total(strata: Sequence[Stratum], uncertain: float, regions: Regions) -> Reply:
    """Return the work of all programs of a launch; see `sampled` and `Regions`."""
    programs, flops = strata[-1].end, Counter[str]()
    for each in strata:
        for dtype, amount in each.program.flops.items():
            flops[dtype] += each.size * amount  # type: ignore[assignment]
    nbytes = np.sum([each.size * each.program.nbytes for each in strata], 0)
    distinct = regions.distinct(nbytes, len(strata) == programs).sum(1)
    (read_least, written_least), (read, written) = np.rint(distinct).astype(int).tolist()
    return {
        "sampled": len(strata),
        "uncertain": round(uncertain, 3) if uncertain > SETTLED else 0.0,
        "fetched": round(nbytes.sum(0).tolist()[0]),
        "read": read,
        "read_least": read_least,
        "written": written,
        "written_least": written_least,
        "flops": {dtype: round(amount) for dtype, amount in sorted(flops.items())},
        "rounds": round(sum(each.size * each.program.rounds for each in strata) / programs, 2),
    }  # fmt: skip


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


class Together(ProgramGroup):
    """Programs that are counted at once, as a mode of the launch; nothing is stored."""

    def __init__(self, counting: Counting, places: np.ndarray) -> None:
        """Take their places in the grid, [programs, 3]."""
        super().__init__(places, np.arange(len(places)), {})
        self._counting = counting

    def _call(self, name: str, operation: Operation, args: tuple[Any, ...]) -> Any:
        self._accessing = self._numbers  # all make an access whose operands do not vary
        return super()._call(name, operation, args)

    def access(self, verb: str, pointers: TensorHandle, mask: Mask, act: Act) -> Any:
        """Count an access; make it if it only loads.

        Raises:
            Dependent: It is out of bounds, which a program that runs by itself reports.
        """
        if WATCH.launch is None or WATCH.launch.first_outside(pointers, mask) is not None:
            raise Dependent
        self._counting.count(verb, pointers, mask, self._accessing)
        return act() if verb == READS else None


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
                run = functools.partial(self._programs, launch, sizes)
                strata, uncertain = self._sample(math.prod(sizes), run)
                named = {"step": "launch", "kernel": executor.fn.__name__, "grid": sizes}
                self.steps.append(named | total(strata, uncertain, self._regions))

    def begin_launch(self, spans: tuple[Span, ...]) -> None:
        """Start counting the programs of a launch with these spans."""
        self._spans, self._regions = spans, Regions(spans)
        self._whole = False
        """Every program and every iteration runs, and kernels may store integers."""

    def _sample(self, programs: int, run: Run) -> tuple[list[Stratum], float]:
        """Run a sample of the programs, or all of them if they store integers; see `sampled`."""
        try:
            return sampled(programs, run, PROGRAMS if self._is_large else MOST_PROGRAMS)
        except WritesIntegers:
            if programs > MAX_FULL_LAUNCH:
                raise NotImplementedError(f"{programs} programs store integers") from None
        self._whole = True
        self._regions = Regions(self._spans)
        return [Stratum(at, at + 1, at, *run([at])) for at in range(programs)], 0.0

    def _programs(
        self, launch: WatchedLaunch, sizes: Grid, indices: Sequence[int]
    ) -> list[Program]:
        """Run programs by their index in the launch order, in which x changes fastest."""
        found: dict[int, Program] = {}
        waiting = [np.array(indices)]
        while waiting:
            part = waiting.pop()
            x, rest = part % sizes[0], part // sizes[0]
            places = np.stack([x, rest % sizes[1], rest // sizes[1]], 1)
            self._begin(len(part))
            try:
                if len(part) == 1:
                    interpreter.interpreter_builder.set_grid_idx(*places[0].tolist())
                    bounds.run(launch)
                else:
                    group = Together(self, places)
                    bounds.run(launch, group)
                    if group.failed:
                        raise Dependent
            except Differs as differs:
                waiting += [part[each] for each in differs.args[0]]
            except (Dependent, Exception):
                if len(part) == 1:
                    raise
                waiting.extend(part[:, None])
            else:
                found |= zip(part.tolist(), self._ended(), strict=True)
        return [found[index] for index in indices]

    def _begin(self, programs: int) -> None:
        """Start counting programs that run at once."""
        self._number = programs
        self._weight = 1.0
        self._others = 0
        """The number of accesses and products so far, less the loads of integers."""
        self._nbytes = np.zeros((programs, *self._regions.shape))
        self._pending = list[np.ndarray]()
        self._known = NO_PLACE
        """Keys in order: the number of a program, and in the low bits a place that it touches."""
        self._parts: list[tuple[np.ndarray, float]] = []
        """Places that programs touched first with a weight, in order of time."""
        self._flops = Counter[str]()
        self._rounds, self._variance = np.zeros(programs), np.zeros((programs, 3))
        self._waits = np.zeros(programs, bool)

    def _ended(self) -> list[Program]:
        """Return the work of each program, and add what they touch to the launch's."""
        self._end_wait()
        self._touch()
        self._regions.touch(self._known, self._parts)
        flops = itertools.repeat(self._flops)
        return [*map(Program, self._nbytes, flops, self._rounds.tolist(), self._variance)]

    def access(self, verb: str, pointers: TensorHandle, mask: Mask, act: Act) -> Any:
        """Count an access of a program that runs by itself, and make it."""
        self.count(verb, pointers, mask, np.array(0))
        return act()

    def count(self, verb: str, pointers: TensorHandle, mask: Mask, programs: np.ndarray) -> None:
        """Count an access; an atomic update counts as a load and a store.

        Args:
            verb: How the memory is accessed.
            pointers: The addresses.
            mask: The lanes that make the access; None for all.
            programs: The number of the program that makes it, or of each program, [programs, ...].

        Raises:
            WritesIntegers: All programs of the launch have to run, but only a sample does.
            NotImplementedError: The call accesses more than MOST_LANES.
        """
        addresses = pointers.data
        is_scalar = addresses.size == (len(programs) if programs.ndim > 1 else 1)
        if programs.ndim == 1:
            programs = programs.reshape(-1, *[1] * addresses.ndim)
            addresses = np.broadcast_to(addresses, (self._number, *addresses.shape))
        self._spend(addresses.size)
        floating = pointers.get_element_ty().is_floating()
        if verb != READS and not (self._whole or self._is_large or floating):
            raise WritesIntegers
        programs = np.broadcast_to(programs, addresses.shape)
        keys = selected(programs, mask).ravel().astype(np.uint64) << PLACE_BITS
        keys = _ordered(keys | selected(addresses, mask).ravel() // np.uint64(SECTOR) << 1)
        if verb != WRITES:
            self._pending.append(keys)
            self._waits[keys >> PLACE_BITS] = True
            self._others += floating
            if is_scalar:
                self._end_wait()
        if verb != READS:
            self._pending.append(keys | 1)
            self._others += 1
            self._end_wait()

    def _end_wait(self) -> None:
        """Count a wait for the loads since the last one, in the programs that made any."""
        self._rounds += self._waits * self._weight
        self._waits[:] = False

    def _touch(self) -> np.ndarray:
        """Count the sectors of the accesses since the last time, which have one weight.

        Returns:
            The amounts of each program so far, as those of `Program`: [programs, 3].
        """
        new = _without(_ordered(NO_PLACE, *self._pending), self._known)
        self._known = _ordered(self._known, new)
        self._pending.clear()
        self._nbytes += SECTOR * self._regions.count(new, self._nbytes) * self._weight
        self._parts.append((_ordered(new & PLACES), self._weight))
        flops = np.full(self._number, sum(self._flops.values()))
        return np.column_stack([self._nbytes.sum(1), flops])

    def _product(
        self, dot: Any, builder: Any, a: Any, b: Any, d: Any, precision: Any, *rest: Any
    ) -> Any:
        """Count a product of blocks; compute it only if its result is an integer."""
        (*batch, m, k), (*_, n) = shape_of(a), shape_of(b)
        dtype = a.dtype.scalar.name
        if dtype == "fp32":
            dtype = "tf32" if precision != ir.INPUT_PRECISION.IEEE else "fp32"
        self._flops[dtype] += round(2 * math.prod(batch) * m * n * k * self._weight)
        self._others += 1
        self._spend(math.prod(batch) * (m + n) * k * self._number)
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
        """Yield the values of the iterations that run; each has the weight of its range.

        Loops of the same length draw the same iterations.
        """
        outer, others, total = self._weight, self._others, len(values)
        edges: Sequence[int] = range(total + 1)
        if total > ITERATIONS and not self._whole:
            edges = [0, 1, total // 2, total - 1, total]
        waiting = drawn(edges, random.Random(total))
        halves = list[tuple[int, np.ndarray]]()
        try:
            while waiting:
                (first, end, index), *waiting = waiting
                before, number = self._touch(), end - first
                self._weight = outer * number
                yield values[index]
                if number > 1 and outer == 1:
                    halves.append((number, (self._touch() - before) / number))
                if index == 0 and self._others == others and total <= WHOLE_LOOP:
                    waiting = [(later, later + 1, later) for later in range(1, total)]
        finally:
            self._touch()
            self._weight = outer
            if len(halves) == 2:
                (one, a), (other, b) = halves
                self._variance += (one**2 + other**2) * (a - b) ** 2 / 2


def _ordered(*keys: np.ndarray) -> np.ndarray:
    """Return the distinct keys of all arrays in order; long ordered parts take little time."""
    found = np.sort(np.concatenate(keys), kind="stable")
    distinct: np.ndarray = found[np.diff(found, prepend=found[:1] + 1) != 0]
    return distinct


def _without(keys: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the keys that are not known; both are in order."""
    if not len(known):
        return keys
    places = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    others: np.ndarray = keys[known[places] != keys]
    return others
