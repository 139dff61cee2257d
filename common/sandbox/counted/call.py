"""Count the work of one board case at its true shape, in a solution's process.

PyTorch operators are counted from the shapes of the tensors that they read and write, and are not
computed. Of each kernel launch, a sample of programs runs and stands for all its programs.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder

from common import wire
from common.sandbox.compiled.target import Grid
from common.sandbox.counted.sample import (
    MORE_PROGRAMS,
    MOST_PROGRAMS,
    PROGRAMS,
    Loops,
    between,
    drawn,
    nearest,
    needed,
    variance,
)
from common.sandbox.counted.traffic import Program, Sample, Traffic, WritesIntegers, total, work_of
from common.sandbox.failures import judge
from common.sandbox.interpreter import bounds, together
from common.sandbox.interpreter.bounds import WATCH, Launch
from common.sandbox.interpreter.wrap import wrapped
from common.sandbox.session import Session
from common.sandbox.shape_only import (
    PRODUCTS,
    SMALL,
    ShapeOnlyMode,
    board_case,
    full_shape_call,
    tensors_of,
    written_by,
)
from common.spec import Case, Direction
from common.wire import Reply


def at_full_shape(session: Session, request: wire.AtFullShape) -> Reply:
    """Count the work of a board case, or run the last programs of the op's large case."""
    assert session.op is not None
    if session.op.large and session.op.large.name == request.case:
        return _last_programs(session, session.op.large)
    return _counted(session, board_case(session, request.case))


def _counted(session: Session, board: Case) -> Reply:
    """Count forward and backward of a board case, at its true shape.

    Returns:
        The steps (operators and launches, in order) of each direction; those of `backward` begin
        with forward's. If the solution fails or does not support the case, also a verdict and its
        reason.
    """
    counted: Reply = {}
    try:
        _count(session, board, counted)
    except Exception as error:
        counted |= judge(error)
    return counted


def _last_programs(session: Session, large: Case) -> Reply:
    """Run the last programs of each launch of the op's large case; see `Op.large`.

    Returns:
        The reason of each address that is out of bounds because its offset wrapped, by direction.
        Any other failure is ignored, since the tensors have no data.
    """
    launches = Launches(_Lowest(), lambda step: None, last=True)
    wraps: Reply = {}

    def ran(direction: Direction) -> None:
        if launches.wraps:
            wraps[direction] = launches.wraps.pop(0)

    with contextlib.suppress(Exception):
        call = full_shape_call(session, large, 0)
        with launches.counting(), ShapeOnlyMode(call.small):
            try:
                output = call.forward()
            finally:
                ran("forward")
            try:
                call.backward(output)
            finally:
                ran("backward")
    return wraps


class _Lowest(random.Random):
    """Draws the first number of each range, since an access is explained by a second run."""

    def randrange(self, start: int, *_: Any) -> int:
        """Return the first number."""
        return start


def _count(session: Session, case: Case, counted: Reply) -> None:
    seed = zlib.crc32(case.name.encode())
    call = full_shape_call(session, case, seed)
    steps: list[Reply] = []
    launches = Launches(random.Random(seed), steps.append)
    with launches.counting(), Operators(steps.append, call.small):
        output = call.forward()
        counted["forward"] = list(steps)
        if output.requires_grad and "backward" in case.directions:
            call.backward(output)
            counted["backward"] = steps


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


class Operators(ShapeOnlyMode):
    """Counts every operator that runs inside this context."""

    def __init__(self, add: Callable[[Reply], None], small: int = SMALL) -> None:
        """Start empty; `add` receives each operator's work as JSON. See `ShapeOnlyMode`."""
        super().__init__(small)
        self._add = add

    def ran(
        self, func: Any, args: Any, kwargs: Any, inputs: list[torch.Tensor], result: Any
    ) -> None:
        """Add the operator's work."""
        self._add(_work(func, args, kwargs, inputs, list(tensors_of(result)), result))


def _work(
    func: Any, args: Any, kwargs: Any, inputs: list[torch.Tensor], outputs: Any, result: Any
) -> Reply:
    packet = func._overloadpacket
    written = sum({_memory_key(output): _bytes(output) for output in outputs}.values())
    mutated = {*map(id, written_by(func, args, kwargs))}
    read = {
        _memory_key(tensor): _bytes(tensor)
        for tensor in inputs
        if not (id(tensor) in mutated and _overwrites(packet))
    }
    if packet in GATHERS:
        read[_memory_key(inputs[0])] = min(written, _bytes(inputs[0]))
    if packet in SCATTERS:
        source = max(
            (_bytes(tensor) for tensor in inputs[1:] if tensor.is_floating_point()), default=0
        )
        read.pop(_memory_key(inputs[0]), None)
        written = min(written, source or written)
    count_flops = PRODUCTS.get(packet)
    floating = next((t for t in [*outputs, *inputs] if t.is_floating_point()), None)
    return {
        "step": "operator",
        "operator": str(packet).removeprefix("aten."),
        "read": sum(read.values()),
        "written": written,
        "flops": int(count_flops(*args, **kwargs, out_val=result)) if count_flops else 0,
        "dtype": str(floating.dtype if floating is not None else "").removeprefix("torch."),
        "plain": _is_plain([*inputs, *outputs]),
    }


def _overwrites(packet: Any) -> bool:
    """Return whether the operator overwrites its mutated argument without reading it."""
    return packet in (aten.copy_, aten.zero_, aten.fill_, aten.normal_, aten.uniform_)


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
    first = blocks[0] if blocks else None
    return all(
        tensor.shape == first.shape  # type: ignore[union-attr]
        and tensor.stride() == first.stride()  # type: ignore[union-attr]
        and torch.ops.aten.is_non_overlapping_and_dense(tensor)
        for tensor in blocks
    )


# --- launches -------------------------------------------------------------------------------------

MAX_FULL_LAUNCH = 4096
"""The most programs of a launch that stores integers, for which all programs have to run."""
MAX_PATHS_OF, FOLLOWED_AT_ONCE = 1 << 23, 1 << 16
"""The most programs of a launch whose paths are found, and of those that are followed at once."""
MOST_PATHS = 9
"""The most paths that are told apart."""
LAST = 4
"""The number of last programs that run of a launch on tensors of more than 2^31 elements."""
Indices = Sequence[int] | np.ndarray
"""Programs of a launch, by their index in its order."""


class Launches:
    """Counts the launches of one call, in order."""

    def __init__(
        self, dice: random.Random, add: Callable[[Reply], None], last: bool = False
    ) -> None:
        """Start with no launches.

        Args:
            dice: The random generator that draws the programs.
            add: Receives each launch's work as JSON.
            last: Whether the last programs run instead of a sample, and nothing is added.
        """
        self._dice, self._add, self._last = dice, add, last
        self.wraps: list[str] = []
        """The accesses that are out of bounds because their offset wrapped."""
        self._loops = Loops(dice)
        self._traffic = Traffic(self._loops, integers=last)

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count launches instead of running them."""
        launches = wrapped(interpreter.GridExecutor, "__call__", self._launch)
        products = wrapped(InterpreterBuilder, "create_dot", self._traffic.in_place_of_dot)
        WATCH.observer = self._traffic
        try:
            with launches, products, self._loops.sampled():
                yield
        finally:
            WATCH.observer = None

    def _launch(self, run: Any, executor: Any, *args: Any, **kwargs: Any) -> None:
        options = {name: kwargs[name] for name in kwargs if name not in executor.arg_names}
        with bounds.launched(executor, args, kwargs) as (launch, sizes):
            try:
                sample, left = self._run(launch, sizes)
            except Exception as error:
                fault = _root(error)
                if getattr(fault, "wrapped", False):
                    self.wraps.append(str(fault))
                raise fault from (None if fault is not error else error.__cause__)
        arguments = launch.program.keywords
        constants = {name: arguments[name] for name in executor.constexprs}
        described = {
            "step": "launch",
            "kernel": executor.fn.__name__,
            "grid": sizes,
            "constants": _json_constants(constants),
        }
        if sample:
            self._add(described | _options(options) | total(sample, left, launch.spans))

    def _run(self, launch: Launch, sizes: Grid) -> tuple[Sample, float]:
        """Run a sample of the programs, or all of them if they store integers.

        Returns:
            The sample, and the variance that it leaves.
        """
        programs, function = math.prod(sizes), launch.program
        if self._last:
            self._run_last(function, sizes)
            return [], 0.0
        run = functools.partial(self._program, function, sizes)
        sample: Sample = []
        left = 0.0
        try:
            for alike in self._paths(launch, sizes):
                part, uncertain = self._sample(alike, run)
                sample, left = [*sample, *part], left + uncertain
        except WritesIntegers:
            if programs > MAX_FULL_LAUNCH:
                raise NotImplementedError(f"{programs} programs store integers") from None
            self._loops.run_all = True
            try:
                sample, left = [(1.0, run(index)) for index in range(programs)], 0.0
            finally:
                self._loops.run_all = False
        return sample, left

    def _run_last(self, function: Callable[[], object], sizes: Grid) -> None:
        """Run the programs at the corners of the grid, and those before the last."""
        corners = itertools.product(*({0, size - 1} for size in sizes if size))
        ends = {int(np.ravel_multi_index(corner, sizes, order="F")) for corner in corners}
        programs = math.prod(sizes)
        for index in sorted({*ends, *range(max(programs - LAST, 0), programs)}, reverse=True):
            self._program(function, sizes, index)

    def _paths(self, launch: Launch, sizes: Grid) -> Sequence[Indices]:
        """Return the programs of a launch by their path through the kernel's branches.

        All programs are together if they take the same path, or if the paths cannot be found.
        """
        programs = math.prod(sizes)
        whole: list[Indices] = [range(programs)]
        if not PROGRAMS < programs <= MAX_PATHS_OF:
            return whole
        try:
            return self._found_paths(launch, sizes)
        except Exception:  # a program that runs by itself raises it again
            return whole

    def _found_paths(self, launch: Launch, sizes: Grid) -> list[Indices]:
        found: dict[tuple[bytes, ...], list[np.ndarray]] = {}
        drawn = self._dice.getstate()

        def run(group: together.Group) -> None:
            self._dice.setstate(drawn)  # the same iterations of each loop
            bounds.run(launch, group)

        for first in range(0, math.prod(sizes), FOLLOWED_AT_ONCE):
            indices = np.arange(first, min(first + FOLLOWED_AT_ONCE, math.prod(sizes)))
            places = np.stack(np.unravel_index(indices, sizes, order="F"), axis=1)
            for path, rows in together.paths(run, places, launch.spans, MOST_PATHS):
                found.setdefault(path, []).append(indices[rows])
        return [np.sort(np.concatenate(parts)) for parts in found.values()]

    def _sample(self, indices: Indices, run: Callable[[int], Program]) -> tuple[Sample, float]:
        """Run a few of the programs; more where others begin to differ from the first or last.

        If programs differ all over the launch, run as many as make the interval narrow.

        Returns:
            The sample, and the variance that it leaves.
        """
        programs = len(indices)
        picked = drawn(programs, PROGRAMS, self._dice)
        results = {at: run(int(indices[at])) for at, _ in picked}
        works = {at: work_of(program) for at, program in results.items()}
        count = _needed_between(works, programs)
        while count <= PROGRAMS and (at := between(works, programs)) is not None:
            results[at] = run(int(indices[at]))
            works[at] = work_of(results[at])
            picked = nearest(sorted(results), programs)
            count = _needed_between(works, programs)
            if len(picked) == MORE_PROGRAMS:
                count = MOST_PROGRAMS
        while len(picked) < count:
            picked = drawn(programs, max(count, MORE_PROGRAMS), self._dice)
            results = {at: run(int(indices[at])) for at, _ in picked}
            works = {at: work_of(program) for at, program in results.items()}
            count = needed(works, programs)
        return [(weight, results[at]) for at, weight in picked], variance(works, programs)

    def _program(self, function: Callable[[], object], sizes: Grid, index: int) -> Program:
        """Run the program at an index of the launch order, in which x changes fastest."""
        x, rest = index % sizes[0], index // sizes[0]
        interpreter.interpreter_builder.set_grid_idx(x, rest % sizes[1], rest // sizes[1])
        work = self._traffic.begin_program()
        function()
        self._traffic.end_program()
        return work


def _needed_between(works: Mapping[int, float], programs: int) -> int:
    """Return how many programs have to be drawn, judged without the first and the last."""
    inner = dict(sorted(works.items())[1:-1])
    return needed(inner, programs) if programs > PROGRAMS else 0


def _root(error: BaseException) -> BaseException:
    """Return the error that a device function raised, without the interpreter's wrappers."""
    while isinstance(error, interpreter.InterpreterError) and error.__context__ is not None:
        error = error.__context__
    return error


def _options(options: Mapping[str, Any]) -> Reply:
    """Return the launch options that shape a block, with Triton's defaults."""
    return {
        "warps": int(options.get("num_warps", 4)),
        "stages": int(options.get("num_stages", 3)),
    }


def _json_constants(constants: Mapping[str, Any]) -> Reply:
    """Return the constants that JSON can represent."""
    bare = {name: getattr(value, "value", value) for name, value in constants.items()}
    return {
        name: str(value) if isinstance(value, torch.dtype) else value
        for name, value in bare.items()
        if value is None or isinstance(value, bool | int | float | str | torch.dtype)
    }
