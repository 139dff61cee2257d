"""Many programs of a launch at once: its trace, played on arrays with a row for each program.

Where the interpreter replays a trace of 30 operations in each of 100 programs, it makes 3,000 calls
of numpy on a few elements each. Here it makes 30, of which each computes all programs. A program's
values come out bit for bit the same: an operation whose rounding could depend on an element's place
is made for each program by itself, and one that adds up elements is never made here.

Stores wait until all programs are played. The programs must be independent: no element that one
stores is loaded or stored by another. Otherwise, and wherever anything else is in doubt, nothing
has happened, and the programs run one after the other, as their order may matter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
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

MOST = 1 << 22
"""The most elements of one operation's result in all programs."""
EXACT = re.compile(
    "create_(addptr|add|sub|mul|sdiv|udiv|idiv|srem|urem|shl|lshr|and|or|xor|(min|max)[su]i"
    "|f(add|sub|mul|div|rem|ma|abs)|precise_divf|precise_sqrt|sqrt|iabs|floor|ceil|[if]cmp[A-Z]+"
    "|select|[su]i_to_fp|fp_to_[su]i|fp_ext|fp_trunc|fp_to_fp|int_cast|bitcast|int_to_ptr|ptr_to_int)"
)
"""Operations on single elements whose result is the same wherever an element lies."""
SINGLE = re.compile("create_(cos|sin|exp|exp2|log|log2|erf|rsqrt|clampf|(min|max)(imum|num)f)")
"""Those whose last bit may depend on the loop of numpy that an element falls into."""
ACCESSES = {
    "create_load": (1, 0),
    "create_store": (2, 0),
    "create_masked_load": (3, 2),
    "create_masked_store": (3, 3),
}
"""The last operand that has an element for each lane, and the mask's position; 0 for none."""
Shape = tuple[int, ...]
Within = Callable[[TensorHandle, np.ndarray | None], bool]


class NotVectorizable(Exception):
    """The programs cannot be played together."""


def play(trace: RecordedTrace, programs: np.ndarray, within: Within) -> bool:
    """Run the programs, if their trace allows it; otherwise do nothing.

    Args:
        trace: The operations of the launch, as its first program or an earlier launch left them.
        programs: The grid index of each program, `[programs, 3]`.
        within: Whether all active lanes of pointers lie in memory that the launch may touch.

    Returns:
        Whether they ran.
    """
    run = _VectorizedRun(trace, programs, within)
    try:
        run.play(trace.start)
        run.require_independence()
    except Exception:  # it comes again where the programs run by themselves, with its own frames
        return False
    for step, args in run.stores:
        step.method(*args)
    return True


class _VectorizedRun:
    """The values of all programs, and their stores so far."""

    def __init__(self, trace: RecordedTrace, programs: np.ndarray, within: Within) -> None:
        self._programs, self._count, self._within = programs, len(programs), within
        self._trace, self._values = trace, list[Any](trace.inputs)
        # the addresses of the active lanes, and the bytes of an element
        self._loaded: list[tuple[np.ndarray, int]] = []
        self._stored: list[tuple[np.ndarray, int]] = []
        self.stores: list[tuple[TraceStep, list[Any]]] = []

    def play(self, entries: Iterable[TraceStep | Guard]) -> None:
        """Make each operation once; follow a decision if it is the same in all programs."""
        for entry in entries:
            if isinstance(entry, Guard):
                self.play(entry.branches[self._decision(entry)])
                return
            if entry.uniform:
                self._values += handles(self._trace.once(entry, self._values))
                continue
            result = self._made(self._bound(entry))
            several = result if isinstance(result, tuple) else (result,)
            for each in several if result is not None else ():
                if type(each) is not TensorHandle or len(each.data) != self._count:
                    raise NotVectorizable
                self._values.append(each)

    def _decision(self, guard: Guard) -> bytes:
        """Return the value that Python decides on, if all programs have the same."""
        read = self._values[guard.value_id]
        several = [read.data] if _is_uniform(read) else read.data
        rows: set[bytes] = {row.tobytes() for row in several}
        if len(rows) > 1:
            raise NotVectorizable
        return rows.pop()

    def _bound(self, step: TraceStep) -> TraceStep:
        """Return the step with what is the same in all programs among its own arguments."""
        same = {at for at, value_id in step.places if _is_uniform(self._values[value_id])}
        if not same:
            return step
        args = list(step.args)
        for at, value_id in step.places:
            if at in same:
                args[at] = self._values[value_id]
        places = tuple(place for place in step.places if place[0] not in same)
        return replace(step, args=tuple(args), places=places)

    def _made(self, step: TraceStep) -> Any:
        name = NAMES[step.method]
        if (
            step.nested
            or max((math.prod(_single(step, at).shape) for at, _ in step.places), default=1)
            * self._count
            > MOST
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
            moved = MOVES[name](args[position].data, _single(step, position).shape, args)
            return TensorHandle(moved, args[position].dtype.scalar)
        if name in ("create_join", "create_split"):  # along the last dimension
            if len(step.places) < len(args) - 1:
                raise NotVectorizable
            return step.method(*args)
        if EXACT.fullmatch(name):
            return step.method(*_aligned(step, args))
        if SINGLE.fullmatch(name):
            return self._one_by_one(step, args)
        raise NotVectorizable

    def _one_by_one(self, step: TraceStep, args: list[Any]) -> TensorHandle:
        several = [position for position, _ in step.places]
        for at in several:
            if not (_single(step, at).contiguous and args[at].data.flags.c_contiguous):
                raise NotVectorizable
        results = []
        for row in range(self._count):
            own = list(args)
            for at in several:
                own[at] = TensorHandle(args[at].data[row], args[at].dtype)
            results.append(step.method(*own))
        return TensorHandle(np.stack([result.data for result in results]), results[0].dtype)

    # --- memory -----------------------------------------------------------------------------------

    def _access(self, name: str, step: TraceStep, args: list[Any]) -> Any:
        """Load at once; leave a store to the end."""
        last, masked = ACCESSES[name]
        shape = (self._count, *_single(step, 1).shape)
        aligned = _aligned(step, args)
        for at in range(1, last + 1):
            if args[at] is None:
                continue
            if _single(step, at).shape != shape[1:]:
                raise NotVectorizable  # one program's lanes are not those of its pointers
            data = np.require(np.broadcast_to(_bare(aligned[at]), shape), requirements=["C", "W"])
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
        """Refuse programs of which one stores what another, or itself, loads or stores."""
        if not self._stored:
            return
        widths = {width for _, width in (*self._stored, *self._loaded)}
        unit = min(widths)
        written = np.concatenate([_units(*each, unit) for each in self._stored])
        if len(np.unique(written)) != len(written):
            raise NotVectorizable
        first, last = (int(written.min()), int(written.max())) if len(written) else (1, 0)
        for each in self._loaded:
            read = _units(*each, unit)
            near = read[(read >= first) & (read <= last)]
            if len(near) and np.isin(near, written).any():
                raise NotVectorizable


def _bare(operand: Any) -> np.ndarray:
    """Return the array of a handle; a trace's own handles are told of each other way to read it."""
    array: np.ndarray = vars(operand)["data"] if isinstance(operand, TensorHandle) else operand
    return array


def _single(step: TraceStep, position: int) -> Form:
    """Return the form of an operand as one program has it."""
    handle = step.args[position]
    return step.forms[position] if handle is None else form_of(handle)


def _is_uniform(handle: Any) -> bool:
    return getattr(handle, "uniform", False)


def _aligned(step: TraceStep, args: list[Any]) -> list[Any]:
    """Return the operands with as many dimensions behind that of the programs.

    For example a scalar of each program `[100, 1]` beside blocks `[16, 8]` becomes `[100, 1, 1]`.
    """
    blocks = [at for at, each in enumerate(args) if isinstance(each, TensorHandle)]
    most = max(len(_single(step, at).shape) for at in blocks)
    aligned = list(args)
    for at, _ in step.places:
        data, rank = args[at].data, len(_single(step, at).shape)
        if rank < most:
            shape = (len(data), *[1] * (most - rank), *data.shape[1:])
            aligned[at] = TensorHandle(data.reshape(shape), args[at].dtype)
    return aligned


def _units(addresses: np.ndarray, width: int, unit: int) -> np.ndarray:
    """Return the memory that accesses touch, counted in units of so many bytes."""
    first, left = np.divmod(addresses, np.uint64(unit))
    if left.any() or width % unit:
        raise NotVectorizable
    return (first[:, None] + np.arange(width // unit, dtype=np.uint64)).ravel()


def _splat(data: np.ndarray, single: Shape, args: list[Any]) -> np.ndarray:
    if single != (1,):
        raise NotVectorizable
    shape = tuple(args[1].shape)
    wide = data.reshape(len(data), *[1] * len(shape))
    return np.ascontiguousarray(np.broadcast_to(wide, (len(data), *shape)))


def _expand(data: np.ndarray, single: Shape, args: list[Any]) -> np.ndarray:
    axis = args[2]
    return np.expand_dims(data, axis + 1 if axis >= 0 else axis)


def _broadcast(data: np.ndarray, single: Shape, args: list[Any]) -> np.ndarray:
    shape = tuple(args[2])
    wide = data.reshape(len(data), *[1] * (len(shape) - len(single)), *single)
    return np.broadcast_to(wide, (len(data), *shape))


def _reshape(data: np.ndarray, single: Shape, args: list[Any]) -> np.ndarray:
    return data.reshape(len(data), *args[2])


def _transpose(data: np.ndarray, single: Shape, args: list[Any]) -> np.ndarray:
    return np.transpose(data, (0, *(axis + 1 for axis in args[2])))


MOVES: dict[str, Callable[[np.ndarray, Shape, list[Any]], np.ndarray]] = {
    "create_splat": _splat,
    "create_expand_dims": _expand,
    "create_broadcast": _broadcast,
    "create_reshape": _reshape,
    "create_trans": _transpose,
}
"""Operations that only move elements, on an operand of all programs."""
