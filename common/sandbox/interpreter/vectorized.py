"""Vectorized replay: run a trace on arrays with a row for each program of a launch.

To replay a trace of 30 operations in each of 100 programs, the interpreter calls numpy 3,000 times
on a few elements. A vectorized replay calls numpy 30 times, each time for all programs. The values
are bitwise the same: an operation whose rounding could depend on an element's position is computed
for each program separately, and an operation that sums elements is not vectorized.

Stores wait until the replay ends. The programs must be independent: no program may load or store an
element that another program stores. If they are not independent, or the replay fails in any way, it
has no effect, and the programs run sequentially, since their order may matter.

`paths` computes only what the kernel's branches depend on, and tells which programs take which.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from common.sandbox.interpreter.recorded_trace import (
    NAMES,
    Form,
    Guard,
    RecordedTrace,
    TraceStep,
    form_of,
    handles,
)
from common.sandbox.interpreter.spans import width_of

MAX_ELEMENTS = 1 << 22
"""The maximum number of elements of an operation's result, over all programs."""
MAX_BRANCHES = 8
"""The maximum number of values at a branch of programs that `paths` tells apart."""
EXACT = re.compile(
    "create_(addptr|add|sub|mul|sdiv|udiv|idiv|srem|urem|shl|lshr|and|or|xor|(min|max)[su]i"
    "|f(add|sub|mul|div|rem|ma|abs)|precise_divf|precise_sqrt|sqrt|iabs|floor|ceil|[if]cmp[A-Z]+"
    "|select|[su]i_to_fp|fp_to_[su]i|fp_ext|fp_trunc|fp_to_fp|int_cast|bitcast|int_to_ptr"
    "|ptr_to_int)"
)
"""Elementwise operations whose result does not depend on an element's position."""
BY_PROGRAM = re.compile("create_(cos|sin|exp|exp2|log|log2|erf|rsqrt|clampf|(min|max)(imum|num)f)")
"""Elementwise operations whose last bit may depend on the numpy loop (SIMD or scalar) that computes
an element."""
ACCESSES = {
    "create_load": (1, 0),
    "create_store": (2, 0),
    "create_masked_load": (3, 2),
    "create_masked_store": (3, 3),
}
"""Two positions among the arguments of an access: the last argument with an element per lane, and
the mask (0: no mask)."""
Shape = tuple[int, ...]
Within = Callable[[TensorHandle, np.ndarray | None], bool]


class NotVectorizable(Exception):
    """The programs cannot be replayed together."""


def play(trace: RecordedTrace, programs: np.ndarray, within: Within) -> bool:
    """Run the programs if their trace can be vectorized; otherwise do nothing.

    Args:
        trace: The trace of the launch, recorded by its first program or an earlier launch.
        programs: The grid index of each program, `[programs, 3]`.
        within: Returns whether all active lanes of pointers lie in the launch's memory.

    Returns:
        Whether the programs ran.
    """
    run = _VectorizedRun(trace, programs, within)
    try:
        run.play(trace.start)
        run.require_independence()
    except Exception:  # a program that runs by itself raises it again, with the kernel's frames
        return False
    for step, args in run.stores:
        step.method(*args)
    return True


def paths(
    trace: RecordedTrace, programs: np.ndarray, within: Within
) -> Iterator[tuple[tuple[bytes, ...], np.ndarray, bool]]:
    """Yield each path of the trace that programs take; compute only what its branches depend on.

    Args:
        trace: The trace of the launch.
        programs: The grid index of each program, `[programs, 3]`.
        within: See `play`.

    Yields:
        The values at the path's branches, the indices of its programs in `programs`, and whether
        the trace has the path to its end.

    Raises:
        NotVectorizable: A branch depends on an operation that is not vectorized.
    """
    waiting: list[tuple[_BranchRun, np.ndarray, list[TraceStep | Guard], tuple[bytes, ...]]]
    waiting = [(_BranchRun(trace, programs, within), np.arange(len(programs)), trace.start, ())]
    while waiting:
        run, indices, entries, path = waiting.pop()
        guard = run.add(entries)
        if guard is None:
            yield path, indices, True
            continue
        for value, rows in run.branches(guard):
            branch = guard.branches.get(value)
            if branch is None:
                yield (*path, value), indices[rows], False
            else:
                waiting.append((run.part(rows), indices[rows], branch, (*path, value)))


class _VectorizedRun:
    """The values of all programs, and their pending stores."""

    def __init__(self, trace: RecordedTrace, programs: np.ndarray, within: Within) -> None:
        self._programs, self._count, self._within = programs, len(programs), within
        self._trace, self._values = trace, list[Any](trace.inputs)
        # for each access, the addresses of the active lanes and the bytes of an element
        self._loaded: list[tuple[np.ndarray, int]] = []
        self._stored: list[tuple[np.ndarray, int]] = []
        self.stores: list[tuple[TraceStep, list[Any]]] = []

    def play(self, entries: Iterable[TraceStep | Guard]) -> None:
        """Execute each operation once; follow a guard if its value is the same in all programs."""
        for entry in entries:
            if isinstance(entry, Guard):
                self.play(entry.branches[self._guard_value(entry)])
                return
            if entry.uniform:
                self._values += handles(self._trace.once(entry, self._values))
                continue
            result = self._execute(self._bind_uniform(entry))
            results = result if isinstance(result, tuple) else (result,)
            for handle in results if result is not None else ():
                if type(handle) is not TensorHandle or len(handle.data) != self._count:
                    raise NotVectorizable
                self._values.append(handle)

    def _guard_value(self, guard: Guard) -> bytes:
        """Return the value that Python branches on, if it is the same in all programs."""
        handle = self._values[guard.value_id]
        rows = [handle.data] if _is_uniform(handle) else handle.data
        values: set[bytes] = {row.tobytes() for row in rows}
        if len(values) > 1:
            raise NotVectorizable
        return values.pop()

    def _bind_uniform(self, step: TraceStep) -> TraceStep:
        """Return the step with the operands that are equal in all programs as constants."""
        uniform = {at for at, value_id in step.places if _is_uniform(self._values[value_id])}
        if not uniform:
            return step
        args = list(step.args)
        for at, value_id in step.places:
            if at in uniform:
                args[at] = self._values[value_id]
        places = tuple(place for place in step.places if place[0] not in uniform)
        return replace(step, args=tuple(args), places=places)

    def _execute(self, step: TraceStep) -> Any:
        name = NAMES[step.method]
        if (
            step.nested
            or max((math.prod(_program_form(step, at).shape) for at, _ in step.places), default=1)
            * self._count
            > MAX_ELEMENTS
        ):
            raise NotVectorizable
        args = list(step.args)
        for position, value_id in step.places:
            args[position] = self._values[value_id]
        if name == "create_get_program_id":
            return TensorHandle(self._programs[:, [args[1]]].astype(np.int32), tl.int32)
        if name in ACCESSES:
            return self._access(name, step, args)
        if name in MOVES:
            (position, _), *others = step.places
            if others:
                raise NotVectorizable
            moved = MOVES[name](args[position].data, _program_form(step, position).shape, args)
            return TensorHandle(moved, args[position].dtype.scalar)
        if name in ("create_join", "create_split"):  # along the last dimension
            if len(step.places) < len(args) - 1:
                raise NotVectorizable
            return step.method(*args)
        if EXACT.fullmatch(name):
            return step.method(*_aligned(step, args))
        if BY_PROGRAM.fullmatch(name):
            return self._execute_by_program(step, args)
        raise NotVectorizable

    def _execute_by_program(self, step: TraceStep, args: list[Any]) -> TensorHandle:
        positions = [position for position, _ in step.places]
        for at in positions:
            if not (_program_form(step, at).contiguous and args[at].data.flags.c_contiguous):
                raise NotVectorizable
        results = []
        for row in range(self._count):
            row_args = list(args)
            for at in positions:
                row_args[at] = TensorHandle(args[at].data[row], args[at].dtype)
            results.append(step.method(*row_args))
        return TensorHandle(np.stack([result.data for result in results]), results[0].dtype)

    # --- memory -----------------------------------------------------------------------------------

    def _access(self, name: str, step: TraceStep, args: list[Any]) -> Any:
        """Execute a load, or add a store to the pending stores."""
        last, masked = ACCESSES[name]
        shape = (self._count, *_program_form(step, 1).shape)
        if math.prod(shape) > MAX_ELEMENTS:
            raise NotVectorizable
        aligned = _aligned(step, args)
        for at in range(1, last + 1):
            if args[at] is None:
                continue
            if _program_form(step, at).shape != shape[1:]:
                raise NotVectorizable  # a program's operand and pointers differ in shape
            array = np.broadcast_to(_array_of(aligned[at]), shape)
            data = np.require(array, requirements=["C", "W"])
            args[at] = TensorHandle(data, aligned[at].dtype)
        mask = args[masked].data.astype(bool, copy=False) if masked else np.ones(shape, dtype=bool)
        if not self._within(args[1], mask):
            raise NotVectorizable
        lanes = args[1].data[mask], width_of(args[1])
        if "load" in name:
            self._loaded.append(lanes)
            return step.method(*args)
        self._stored.append(lanes)
        self.stores.append((step, args))
        return None

    def require_independence(self) -> None:
        """Raise NotVectorizable if a stored element is also loaded, or is stored twice."""
        if not self._stored:
            return
        widths = {width for _, width in (*self._stored, *self._loaded)}
        unit = min(widths)
        written = np.concatenate([_touched_units(*lanes, unit) for lanes in self._stored])
        if len(np.unique(written)) != len(written):
            raise NotVectorizable
        first, last = (int(written.min()), int(written.max())) if len(written) else (1, 0)
        for lanes in self._loaded:
            read = _touched_units(*lanes, unit)
            in_range = read[(read >= first) & (read <= last)]
            if len(in_range) and np.isin(in_range, written).any():
                raise NotVectorizable


@dataclass
class _Pending:
    """A result of an operation that no branch has needed yet."""

    step: TraceStep
    position: int


class _BranchRun(_VectorizedRun):
    """The values of the programs on one path; an operation runs when a branch depends on it."""

    def __init__(
        self, trace: RecordedTrace, programs: np.ndarray, within: Within, values: Iterable[Any] = ()
    ) -> None:
        super().__init__(trace, programs, within)
        self._values = _Slots(self._value, values)

    def add(self, entries: Iterable[TraceStep | Guard]) -> Guard | None:
        """Add the operations up to the next guard, and return the guard."""
        for entry in entries:
            if isinstance(entry, Guard):
                return entry
            name = NAMES[entry.method]
            if not (name in _HAVE_RESULTS or EXACT.fullmatch(name) or BY_PROGRAM.fullmatch(name)):
                raise NotVectorizable
            results = 0 if "store" in name else 1 + (name == "create_split")
            self._values.extend(_Pending(entry, position) for position in range(results))
        return None

    def branches(self, guard: Guard) -> Iterator[tuple[bytes, np.ndarray]]:
        """Yield each value that the kernel's Python reads at a guard, and the rows that have it."""
        handle = self._values[guard.value_id]
        if _is_uniform(handle):
            yield handle.data.tobytes(), np.arange(self._count)
            return
        rows = np.ascontiguousarray(handle.data.reshape(self._count, -1))
        values, kinds = np.unique(rows, axis=0, return_inverse=True)
        if len(values) > MAX_BRANCHES:
            raise NotVectorizable
        for kind, value in enumerate(values):
            yield value.tobytes(), np.flatnonzero(kinds.ravel() == kind)

    def part(self, rows: np.ndarray) -> _BranchRun:
        """Return the run of some of the programs."""
        values = (
            value
            if isinstance(value, _Pending) or _is_uniform(value)
            else TensorHandle(value.data[rows], value.dtype)
            for value in list.__iter__(self._values)
        )
        return _BranchRun(self._trace, self._programs[rows], self._within, values)

    def _value(self, pending: _Pending) -> Any:
        step = pending.step
        if step.uniform:
            return [*handles(self._trace.once(step, self._values))][pending.position]
        result = self._execute(self._bind_uniform(step))
        value = result[pending.position] if isinstance(result, tuple) else result
        if type(value) is not TensorHandle or len(value.data) != self._count:
            raise NotVectorizable
        return value


class _Slots(list[Any]):
    """The values of a run; a pending one is computed when it is read."""

    def __init__(self, compute: Callable[[_Pending], Any], values: Iterable[Any]) -> None:
        super().__init__(values)
        self._compute = compute

    def __getitem__(self, slot: Any) -> Any:
        value = super().__getitem__(slot)
        if isinstance(value, _Pending):
            self[slot] = value = self._compute(value)
        return value


def _array_of(operand: Any) -> np.ndarray:
    """Return a handle's array without reporting the read to the trace."""
    array: np.ndarray = vars(operand)["data"] if isinstance(operand, TensorHandle) else operand
    return array


def _program_form(step: TraceStep, position: int) -> Form:
    """Return the form that an operand has in a single program."""
    handle = step.args[position]
    return step.forms[position] if handle is None else form_of(handle)


def _is_uniform(handle: Any) -> bool:
    return getattr(handle, "uniform", False)


def _aligned(step: TraceStep, args: list[Any]) -> list[Any]:
    """Return the operands, all with the same number of dimensions after the program dimension.

    For example, next to blocks `[16, 8]`, the scalars of 100 programs `[100, 1]` become
    `[100, 1, 1]`.
    """
    blocks = [at for at, arg in enumerate(args) if isinstance(arg, TensorHandle)]
    max_rank = max(len(_program_form(step, at).shape) for at in blocks)
    aligned = list(args)
    for at, _ in step.places:
        data, rank = args[at].data, len(_program_form(step, at).shape)
        if rank < max_rank:
            shape = (len(data), *[1] * (max_rank - rank), *data.shape[1:])
            aligned[at] = TensorHandle(data.reshape(shape), args[at].dtype)
    return aligned


def _touched_units(addresses: np.ndarray, width: int, unit: int) -> np.ndarray:
    """Return the indices of the memory units, of `unit` bytes, that the accesses touch."""
    first, remainder = np.divmod(addresses, np.uint64(unit))
    if remainder.any() or width % unit:
        raise NotVectorizable
    return (first[:, None] + np.arange(width // unit, dtype=np.uint64)).ravel()


def _splat(data: np.ndarray, program_shape: Shape, args: list[Any]) -> np.ndarray:
    if program_shape != (1,):
        raise NotVectorizable
    shape = tuple(args[1].shape)
    wide = data.reshape(len(data), *[1] * len(shape))
    return np.ascontiguousarray(np.broadcast_to(wide, (len(data), *shape)))


def _expand(data: np.ndarray, program_shape: Shape, args: list[Any]) -> np.ndarray:
    axis = args[2]
    return np.expand_dims(data, axis + 1 if axis >= 0 else axis)


def _broadcast(data: np.ndarray, program_shape: Shape, args: list[Any]) -> np.ndarray:
    shape = tuple(args[2])
    wide = data.reshape(len(data), *[1] * (len(shape) - len(program_shape)), *program_shape)
    return np.broadcast_to(wide, (len(data), *shape))


def _reshape(data: np.ndarray, program_shape: Shape, args: list[Any]) -> np.ndarray:
    return data.reshape(len(data), *args[2])


def _transpose(data: np.ndarray, program_shape: Shape, args: list[Any]) -> np.ndarray:
    return np.transpose(data, (0, *(axis + 1 for axis in args[2])))


MOVES: dict[str, Callable[[np.ndarray, Shape, list[Any]], np.ndarray]] = {
    "create_splat": _splat,
    "create_expand_dims": _expand,
    "create_broadcast": _broadcast,
    "create_reshape": _reshape,
    "create_trans": _transpose,
}
"""Operations that only move elements, applied to the rows of all programs."""
_HAVE_RESULTS = {*ACCESSES, *MOVES, "create_get_program_id", "create_join", "create_split"}
"""Further operations whose number of results is known."""
