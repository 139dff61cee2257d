"""Run the programs of a launch at once: the kernel's Python runs once, on arrays of all programs.

Triton's front end takes fifty microseconds for an operation whose arithmetic takes five. So a value
that may differ between the programs is an array with a row for each program (`Rows`), and an
operation computes all rows. The values are bitwise those of programs that run one by one: an
operation whose rounding could depend on an element's position computes row by row.

If Python reads a value that differs between the programs, as `if tl.program_id(0) == 0` does, the
programs are split by the value, and each part runs from the kernel's start.

Stores wait until all programs have run. No program may touch what another changes. If one does, or
anything fails, this has no effect, and the programs run one by one in plain Triton, where their
order may matter and an exception has the kernel's own frames.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from common.sandbox.interpreter.explanation import ATOMIC, READS
from common.sandbox.interpreter.operations import Operation, handles, mapped
from common.sandbox.interpreter.spans import Act, Mask, Span, accessed, selected, width_of

MAX_ELEMENTS = 1 << 22
"""The maximum number of elements of an operation's result, over all programs."""
_SAME = re.compile(
    "create_(addptr|add|sub|mul|sdiv|udiv|idiv|srem|urem|shl|lshr|and|or|xor|(min|max)[su]i"
    "|f(add|sub|mul|div|rem|ma|abs)|precise_divf|precise_sqrt|sqrt|iabs|floor|ceil|[if]cmp[A-Z]+"
    "|select|[su]i_to_fp|fp_to_[su]i|fp_ext|fp_trunc|fp_to_fp|int_cast|bitcast|int_to_ptr"
    "|ptr_to_int|join|split)$"
)
EXACT = frozenset(filter(_SAME.match, dir(InterpreterBuilder)))
"""The operations whose result does not depend on an element's position: elementwise ones, and two
on the last axis."""
ROUNDED = {"create_" + name for name in ("cos", "exp", "exp2", "log", "log2", "rsqrt", "sin")}
"""The operations of one operand whose rounding could depend on an element's position in its row."""
ACCESSES = {"create_load", "create_store", "create_masked_load", "create_masked_store"}
"""The accesses that all programs make at once, if their operands have one shape."""
CHANGES = frozenset(filter(re.compile(".*store|.*scatter|.*atomic").match, dir(InterpreterBuilder)))
"""The operations that change memory."""
MOVES: dict[str, Callable[[np.ndarray, tuple[Any, ...]], np.ndarray]] = {
    "create_splat": lambda array, args: _broadcast(array, args[1].shape),
    "create_broadcast": lambda array, args: _broadcast(array, args[2]),
    # an axis from the end is one from the end with the programs too
    "create_expand_dims": lambda array, args: np.expand_dims(array, args[2] + (args[2] >= 0)),
    "create_reshape": lambda array, args: array.reshape(len(array), *args[2]),
    "create_trans": lambda array, args: np.transpose(array, (0, *(at + 1 for at in args[2]))),
}
"""Operations that only move elements, applied to the rows of all programs."""


class Dependent(BaseException):
    """The programs of a launch cannot run at once; no handler of a kernel may catch this."""


class Differs(BaseException):
    """Python reads a value that is not the same in all programs, or they have too many elements.

    The argument is a list: the indices of the programs that may run at once, for each part.
    """


class Rows(TensorHandle):  # type: ignore[misc]
    """A value of all programs of a group: [programs, *shape].

    The result of a store or of an atomic update, which waits, has no `array`: to read it fails.
    """

    array: np.ndarray

    def __init__(self, group: ProgramGroup, dtype: Any, array: np.ndarray | None = None) -> None:
        """Take the values of all programs."""
        self.dtype, self.attr, self._group = dtype, dict[str, Any](), group
        if array is not None:
            self.array = array

    @property
    def data(self) -> Any:
        """The value that all programs have.

        Raises:
            Differs: They do not have the same.
        """
        return self._group.read(self.array)


class PendingStore(NamedTuple):
    """A store or an atomic update, which waits."""

    verb: str
    addresses: np.ndarray
    programs: np.ndarray
    """The number of each address's program."""
    width: int
    """The bytes of an element."""
    make: Callable[[], Any]


class ProgramGroup:
    """Programs that run at once, as a mode of the launch."""

    def __init__(self, programs: np.ndarray, numbers: np.ndarray, verbs: dict[Span, str]) -> None:
        """Take their places in the grid, [programs, 3], and their numbers in the launch's order.

        `verbs` has, for all groups, how each span of the launch was accessed; "" if it was not.
        """
        self.busy = False
        self.failed = False
        """Whether an exception was raised, which a kernel may have caught."""
        self.changes: list[PendingStore] = []
        self._programs, self._numbers, self._verbs = programs, numbers, verbs
        self._accessing = numbers[0]
        """The numbers of the programs that make a change; broadcast to its lanes."""

    def read(self, array: np.ndarray) -> Any:
        """Return the value that all programs have."""
        flat = np.ascontiguousarray(array).reshape(len(self._programs), -1).view(np.uint8)
        if (flat == flat[0]).all():
            return array[0]
        self.failed = True
        values, kinds = np.unique(flat, axis=0, return_inverse=True)
        raise Differs([np.flatnonzero(kinds.ravel() == kind) for kind in range(len(values))])

    def call(self, name: str, operation: Operation, args: tuple[Any, ...]) -> Any:
        """Return the result of an operation for all programs."""
        try:
            return self._call(name, operation, args)
        except BaseException:
            self.failed = True
            raise

    def _call(self, name: str, operation: Operation, args: tuple[Any, ...]) -> Any:
        several = len(self._programs) > 1
        if name == "create_get_program_id":
            places = self._programs[:, [args[1]]].astype(np.int32)
            return Rows(self, tl.int32, places) if several else TensorHandle(places[0], tl.int32)
        varies = any(isinstance(handle, Rows) for handle in handles(args))
        if name == "create_print" or (name in CHANGES and several and not varies):
            raise Dependent  # the order shows, or each program changes the same elements
        result = self._computed(name, operation, args) if varies else operation(*args)
        if name in CHANGES:
            return Rows(self, tl.void)
        return mapped(self._rows, result) if varies else result

    def _rows(self, handle: TensorHandle) -> Rows:
        """Return all programs' values; split the programs if these are too many elements."""
        if handle.data.size > MAX_ELEMENTS and len(self._programs) > 1:
            raise Differs(np.array_split(np.arange(len(self._programs)), 2))
        return Rows(self, handle.dtype, handle.data)

    def _computed(self, name: str, operation: Operation, args: tuple[Any, ...]) -> Any:
        """Return the result with an array of all programs' values in each handle."""
        operands = [arg for arg in args if isinstance(arg, TensorHandle)]
        varying = [arg for arg in operands if isinstance(arg, Rows)]
        if name in MOVES and len(varying) == 1:
            return TensorHandle(MOVES[name](varying[0].array, args), varying[0].dtype.scalar)
        if name in EXACT:
            return operation(*_aligned(args))
        if name in ROUNDED:
            rows = varying[0]
            result = operation(args[0], TensorHandle(_apart(rows.array), rows.dtype))
            return TensorHandle(result.data.reshape(rows.array.shape), result.dtype)
        if name not in ACCESSES or len(set(map(shape_of, operands))) > 1:
            return self._by_row(operation, args)
        self._accessing = self._numbers.reshape(-1, *[1] * len(shape_of(operands[0])))
        return operation(*mapped(self._widened, args))

    def _widened(self, handle: TensorHandle) -> TensorHandle:
        """Return all programs' values, of a value that all have too."""
        array = handle.array if isinstance(handle, Rows) else handle.data
        array = np.broadcast_to(array, (len(self._programs), *shape_of(handle)))
        return TensorHandle(np.require(array, requirements=["C", "W"]), handle.dtype)

    def _by_row(self, operation: Operation, args: tuple[Any, ...]) -> Any:
        """Return the result as `_computed` does, computed program by program."""
        results = []
        for row, number in enumerate(self._numbers):
            self._accessing = number
            results.append(operation(*mapped(functools.partial(_row_of, row), args)))
        arrays = zip(*([each.data for each in handles(result)] for result in results), strict=True)

        def stacked(handle: TensorHandle) -> TensorHandle:
            wide = copy.copy(handle)
            wide.data = np.stack(next(arrays))
            return wide

        return mapped(stacked, results[0])

    def access(self, verb: str, pointers: TensorHandle, mask: Mask, act: Act) -> Any:
        """Load, or let a store or an atomic update wait.

        Raises:
            Dependent: The access leaves the launch's memory, or a span is accessed in two ways: one
                program may read what another changes.
        """
        spans, outside = accessed(pointers, mask, tuple(self._verbs))
        if outside.size or any(self._verbs[span] not in ("", verb) for span in spans):
            raise Dependent
        self._verbs.update(dict.fromkeys(spans, verb))
        if verb == READS:
            return act()
        programs = selected(np.broadcast_to(self._accessing, pointers.data.shape), mask).ravel()
        addresses = selected(pointers.data, mask).ravel()
        self.changes.append(PendingStore(verb, addresses, programs, width_of(pointers), act))
        return None


def shape_of(handle: TensorHandle) -> tuple[int, ...]:
    """Return the shape of one program's value."""
    return handle.array.shape[1:] if isinstance(handle, Rows) else handle.data.shape


def _row_of(row: int, handle: TensorHandle) -> TensorHandle:
    """Return one program's value."""
    return TensorHandle(handle.array[row], handle.dtype) if isinstance(handle, Rows) else handle


def _ranked(array: np.ndarray, rank: int) -> np.ndarray:
    """Return rows of values with `rank` dimensions: `[100, 1]` becomes `[100, 1, 1]` for two."""
    count, *shape = array.shape
    return array.reshape(count, *[1] * (rank - len(shape)), *shape)


def _apart(array: np.ndarray) -> np.ndarray:
    """Return the rows with space between them, so that numpy computes one after the other."""
    count, size = len(array), array[0].size
    apart = np.zeros((count, size + 1), array.dtype)[:, :size]
    apart[:] = array.reshape(count, size)
    return apart


def _aligned(args: tuple[Any, ...]) -> list[Any]:
    """Return the operands, all with the same number of dimensions after that of the programs."""
    rank = max(len(shape_of(arg)) for arg in args if isinstance(arg, TensorHandle))
    return [
        TensorHandle(_ranked(arg.array, rank), arg.dtype) if isinstance(arg, Rows) else arg
        for arg in args
    ]


def _broadcast(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    return np.broadcast_to(_ranked(array, len(shape)), (len(array), *shape))


# --- the programs of a launch ---------------------------------------------------------------------


def play(
    run: Callable[[ProgramGroup], object], programs: np.ndarray, spans: Sequence[Span]
) -> bool:
    """Run the programs at once if they are independent; return whether they ran.

    `run` runs the kernel's Python once, for a group of programs. Their places in the grid, in the
    launch's order, are `programs`, [programs, 3].
    """
    if len(programs) < 2:
        return False
    verbs, changes = dict.fromkeys(spans, ""), list[PendingStore]()
    waiting, runs = [np.arange(len(programs))], 0
    try:
        while waiting:
            runs += 1
            if runs + len(waiting) > len(programs) + 1:
                return False  # one by one they take less time
            indices = waiting.pop()
            group = ProgramGroup(programs[indices], indices, verbs)
            try:
                run(group)
                if group.failed:
                    return False
                changes += group.changes
            except Differs as differs:
                waiting += [indices[part] for part in differs.args[0]]
    except (Dependent, Exception):  # a program that runs by itself raises it again
        return False
    updates = [change for change in changes if change.verb == ATOMIC]
    stores = [change for change in changes if change.verb != ATOMIC]
    if stores and _overlap(stores):
        return False
    for change in (*stores, *sorted(updates, key=lambda update: update.programs[:1].tolist())):
        change.make()
    return True


def _overlap(stores: Sequence[PendingStore]) -> bool:
    """Return whether two programs store an element."""
    addresses = np.concatenate([store.addresses for store in stores])
    ends = np.concatenate([store.addresses + np.uint64(store.width) for store in stores])
    programs = np.concatenate([store.programs for store in stores])
    order = np.argsort(addresses, kind="stable")
    overlap = addresses[order][1:] < np.maximum.accumulate(ends[order])[:-1]
    return bool((overlap & (np.diff(programs[order]) != 0)).any())
