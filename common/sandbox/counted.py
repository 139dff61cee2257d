"""Count the work of one board case at its true shape, in a solution's process.

PyTorch operators are counted from the shapes of the tensors that they read and write, and are not
computed. Of each kernel launch, a sample of programs runs and stands for all its programs.
"""

from __future__ import annotations

import contextlib
import functools
import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder

from common import wire
from common.sandbox.failures import judge
from common.sandbox.interpreter import bounds
from common.sandbox.interpreter.bounds import WATCH, OutOfBounds, WatchedLaunch
from common.sandbox.interpreter.language import Loop
from common.sandbox.interpreter.operations import wrap
from common.sandbox.session import Session
from common.sandbox.shape_only import PRODUCTS, board_case, directions, tensors_of, written_by
from common.sandbox.target import Grid
from common.sandbox.traffic import (
    MOST_PROGRAMS,
    Program,
    Stratum,
    Traffic,
    WritesIntegers,
    sampled,
    total,
)
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
        self._traffic.end_program()
        return work


def _root(error: BaseException) -> BaseException:
    """Return the error that a device function raised, without the interpreter's wrappers."""
    while isinstance(error, interpreter.InterpreterError) and error.__context__ is not None:
        error = error.__context__
    return error
