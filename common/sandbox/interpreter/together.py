"""Run the programs of a launch at once: the kernel's Python runs once, on arrays of all programs.

Triton's front end takes fifty microseconds for an operation whose arithmetic takes five. So a value
that may differ between the programs is an array with a row for each program (`Rows`), and an
operation computes all rows. The values are bitwise those of programs that run one by one: an
operation whose rounding could depend on an element's position computes row by row.

If Python reads a value that differs between the programs, as `if tl.program_id(0) == 0` does, the
programs are split by the value, and each part runs from the kernel's start.

Stores wait until all programs have run. The programs must be independent (`Touched`). If they are
not, or anything fails, this has no effect, and the programs run one by one in plain Triton, where
their order may matter and an exception has the kernel's own frames.
"""

from __future__ import annotations

import copy
import functools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from common.sandbox.interpreter.conflicts import ATOMIC, READS
from common.sandbox.interpreter.operations import Operation, handles, mapped
from common.sandbox.interpreter.spans import Span, selected, width_of

MAX_ELEMENTS = 1 << 22
"""The maximum number of elements of an operation's result, over all programs."""
EXACT = re.compile(
    "^create_(addptr|add|sub|mul|sdiv|udiv|idiv|srem|urem|shl|lshr|and|or|xor|(min|max)[su]i"
    "|f(add|sub|mul|div|rem|ma|abs)|precise_divf|precise_sqrt|sqrt|iabs|floor|ceil|[if]cmp[A-Z]+"
    "|select|[su]i_to_fp|fp_to_[su]i|fp_ext|fp_trunc|fp_to_fp|int_cast|bitcast|int_to_ptr"
    "|ptr_to_int)$"
)
"""Elementwise operations whose result does not depend on an element's position."""
ON_LAST_AXIS = ("create_join", "create_split")
ACCESSES = {
    "create_load": 1, "create_store": 2, "create_masked_load": 3, "create_masked_store": 3,
}  # fmt: skip
"""The accesses of all programs at once; the last of the arguments with an element per lane."""
CHANGES = re.compile("store|scatter|atomic")
"""Matches the names of operations that change memory."""
SEVERAL = -1
"""Stands for several programs; 0 stands for none."""


class Dependent(BaseException):
    """The programs of a launch cannot run at once; no handler of a kernel may catch this."""


class Differs(BaseException):
    """Python reads a value that is not the same in all programs."""

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        """Keep the indices of the programs that have the same value."""
        super().__init__()
        self.parts = parts


class TooManyElements(Differs):
    """The programs have too many elements; the parts are the halves."""


class Rows(TensorHandle):  # type: ignore[misc]
    """A value of all programs of a group."""

    def __init__(self, group: ProgramGroup, dtype: Any, array: np.ndarray | None) -> None:
        """Take the values of all programs: [programs, *shape]; None for the result of a change."""
        self.dtype, self.attr = dtype, dict[str, Any]()
        self._group, self._array = group, array

    @property
    def array(self) -> np.ndarray:
        """The values of all programs: [programs, *shape].

        Raises:
            Dependent: This is the result of a store or of an atomic update, which waits.
        """
        if self._array is None:
            raise Dependent
        return self._array

    @property
    def data(self) -> Any:
        """The value that all programs have.

        Raises:
            Differs: They do not have the same.
        """
        return self._group.read(self.array)


class ProgramGroup:
    """Programs that run at once, as a mode of the launch."""

    def __init__(self, programs: np.ndarray, numbers: np.ndarray, touched: Touched) -> None:
        """Take the programs.

        Args:
            programs: The place of each in the grid: `[programs, 3]`.
            numbers: Their numbers, from 1 on, in the order of the launch.
            touched: What the launch's programs touch.
        """
        self.busy = False
        self.failed = False
        """Whether an exception was raised, which a kernel may have caught."""
        self.writes: list[Callable[[], Any]] = []
        """The stores, which wait."""
        self.updates: list[tuple[int, Callable[[], Any]]] = []
        """The atomic updates, which wait, each with the number of its program."""
        self._programs, self._numbers, self._touched = programs, numbers, touched
        self._all: Any = numbers[0] if len(numbers) == 1 else SEVERAL
        self._accessing = self._all
        """The numbers of the programs that make an access; broadcast to its lanes."""

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
        changes = _matches(CHANGES, name)
        if name == "create_print" or (changes and several and not varies):
            raise Dependent  # the order shows, or each program changes the same elements
        result = self._computed(name, operation, args) if varies else operation(*args)
        if changes:
            return Rows(self, tl.void, None)
        return mapped(lambda each: Rows(self, each.dtype, each.data), result) if varies else result

    def _computed(self, name: str, operation: Operation, args: tuple[Any, ...]) -> Any:
        """Return the result with an array of all programs' values in each handle.

        Raises:
            TooManyElements: The programs have too many elements.
        """
        if name in ACCESSES:
            return self._wide_access(name, operation, args)
        varying = [arg for arg in args if isinstance(arg, Rows)]
        if name in MOVES and len(varying) == 1:
            moved = MOVES[name](varying[0].array, args)
            self._check_size(moved.size)
            return TensorHandle(moved, varying[0].dtype.scalar)
        if _matches(EXACT, name) or (name in ON_LAST_AXIS and len(varying) == len(args) - 1):
            aligned = _aligned(args)
            shapes = (arg.data.shape for arg in aligned if isinstance(arg, TensorHandle))
            self._check_size(math.prod(np.broadcast_shapes(*shapes)))
            return operation(*aligned)
        return self._by_row(operation, args)

    def _check_size(self, elements: int) -> None:
        count = len(self._programs)
        if count > 1 and elements > MAX_ELEMENTS:
            raise TooManyElements(np.array_split(np.arange(count), 2))

    def _by_row(self, operation: Operation, args: tuple[Any, ...]) -> Any:
        """Return the result as `_computed` does, computed program by program."""
        results = []
        for row, number in enumerate(self._numbers):
            self._accessing = number
            results.append(operation(*mapped(functools.partial(_row_of, row), args)))
        self._accessing = self._all
        arrays = zip(*([each.data for each in handles(result)] for result in results), strict=True)

        def stacked(handle: TensorHandle) -> TensorHandle:
            wide = copy.copy(handle)
            wide.data = np.stack(next(arrays))
            return wide

        return mapped(stacked, results[0])

    # --- memory -----------------------------------------------------------------------------------

    def _wide_access(self, name: str, operation: Operation, args: tuple[Any, ...]) -> Any:
        """Load or store the elements of all programs."""
        shape = (len(self._programs), *_shape(args[1]))
        self._check_size(math.prod(shape))
        aligned = _aligned(args)
        for at in range(1, ACCESSES[name] + 1):
            if args[at] is None:
                continue
            if _shape(args[at]) != shape[1:]:
                raise Dependent
            wide = np.broadcast_to(aligned[at].data, shape)
            aligned[at] = TensorHandle(np.require(wide, requirements=["C", "W"]), aligned[at].dtype)
        self._accessing = self._numbers.reshape(-1, *[1] * (len(shape) - 1))
        result = operation(*aligned)
        self._accessing = self._all
        return result

    def access(
        self, verb: str, pointers: TensorHandle, mask: np.ndarray | None, act: Callable[[], Any]
    ) -> Any:
        """Load, or let a store or an atomic update wait.

        Raises:
            Dependent: See `Touched.add`.
        """
        programs = np.broadcast_to(self._accessing, pointers.data.shape)
        lanes = selected(pointers.data, mask), width_of(pointers), selected(programs, mask)
        self._touched.add(verb, *lanes)
        if verb == READS:
            return act()
        if verb == ATOMIC:
            self.updates.append((int(self._accessing), act))
        else:
            self.writes.append(act)
        return None


@functools.cache
def _matches(pattern: re.Pattern[str], name: str) -> bool:
    return bool(pattern.search(name))


def _shape(handle: TensorHandle) -> tuple[int, ...]:
    """Return the shape of one program's value."""
    return handle.array.shape[1:] if isinstance(handle, Rows) else handle.data.shape


def _row_of(row: int, handle: TensorHandle) -> TensorHandle:
    """Return one program's value."""
    return TensorHandle(handle.array[row], handle.dtype) if isinstance(handle, Rows) else handle


def _ranked(array: np.ndarray, rank: int) -> np.ndarray:
    """Return rows of values with `rank` dimensions: `[100, 1]` becomes `[100, 1, 1]` for two."""
    count, *shape = array.shape
    return array.reshape(count, *[1] * (rank - len(shape)), *shape)


def _aligned(args: tuple[Any, ...]) -> list[Any]:
    """Return the operands, all with the same number of dimensions after that of the programs."""
    rank = max(len(_shape(arg)) for arg in args if isinstance(arg, TensorHandle))
    return [
        TensorHandle(_ranked(arg.array, rank), arg.dtype) if isinstance(arg, Rows) else arg
        for arg in args
    ]


def _broadcast(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    return np.broadcast_to(_ranked(array, len(shape)), (len(array), *shape))


MOVES: dict[str, Callable[[np.ndarray, tuple[Any, ...]], np.ndarray]] = {
    "create_splat": lambda array, args: np.ascontiguousarray(_broadcast(array, args[1].shape)),
    "create_broadcast": lambda array, args: _broadcast(array, args[2]),
    # an axis from the end is one from the end with the programs too
    "create_expand_dims": lambda array, args: np.expand_dims(array, args[2] + (args[2] >= 0)),
    "create_reshape": lambda array, args: array.reshape(len(array), *args[2]),
    "create_trans": lambda array, args: np.transpose(array, (0, *(at + 1 for at in args[2]))),
}
"""Operations that only move elements, applied to the rows of all programs."""


# --- the elements that programs touch -------------------------------------------------------------


class Touched:
    """The programs that have read and written each element of a launch's memory.

    A program is a number from 1 on. The elements of a region all have the same width.
    """

    def __init__(self, spans: Iterable[Span]) -> None:
        """Begin with no access to these spans, which may overlap: overlapping ones are a region."""
        self._regions: list[Span] = []
        self._touched: dict[Span, tuple[int, np.ndarray, np.ndarray]] = {}
        """By region: the bytes of an element, and each element's reader and writer."""
        for span in sorted(spans, key=lambda span: span.first):
            if self._regions and span.first < self._regions[-1].end:
                last = self._regions.pop()
                span = last._replace(end=max(last.end, span.end))
            self._regions.append(span)

    def add(self, verb: str, addresses: np.ndarray, width: int, programs: np.ndarray) -> None:
        """Add an access of each program in `programs` to the address at the same index.

        Raises:
            Dependent: A program changes an element that another touches, reads what it has written,
                or leaves the launch's memory.
        """
        if not addresses.size:
            return
        first, end = int(addresses.min()), int(addresses.max()) + width
        if whole := next((region for region in self._regions if region.holds(first, end)), None):
            self._enter(whole, verb, addresses, width, programs)
            return
        left = addresses.size
        for region in self._regions:
            lanes = (addresses >= region.first) & (addresses + np.uint64(width) <= region.end)
            if lanes.any():
                self._enter(region, verb, addresses[lanes], width, programs[lanes])
                left -= int(np.count_nonzero(lanes))
        if left:
            raise Dependent

    def _enter(
        self, region: Span, verb: str, addresses: np.ndarray, width: int, programs: np.ndarray
    ) -> None:
        """Enter an access to a region."""
        if region not in self._touched:
            nothing = np.zeros((2, (region.end - region.first) // width), dtype=np.int32)
            self._touched[region] = width, *nothing
        region_width, readers, writers = self._touched[region]
        places, rest = np.divmod(addresses - np.uint64(region.first), np.uint64(width))
        if width != region_width or rest.any():
            raise Dependent
        if not _may(verb, places.astype(np.int64), programs, readers, writers):
            raise Dependent


def _may(
    verb: str, places: np.ndarray, programs: np.ndarray, readers: np.ndarray, writers: np.ndarray
) -> bool:
    """Return whether the programs may make an access at once, and enter it."""
    if verb == READS:
        if writers[places].any():
            return False  # a store waits until all programs have run
        readers[places] = np.where(_others(readers[places], programs), SEVERAL, programs)
        readers[places[readers[places] != programs]] = SEVERAL
        return True
    if verb == ATOMIC:  # several programs may update an element
        free = not (readers[places].any() or (writers[places] > 0).any())
        writers[places] = SEVERAL
        return free
    before = readers[places], writers[places]
    writers[places] = programs
    after = writers[places]  # of several lanes, the last is the writer
    return not any(_others(each, programs).any() for each in (*before, after))


def _others(touched: np.ndarray, programs: np.ndarray) -> np.ndarray:
    """Return where a program other than the same index's has touched an element."""
    others: np.ndarray = (touched != 0) & (touched != programs)
    return others


# --- the programs of a launch ---------------------------------------------------------------------

Run = Callable[[ProgramGroup], object]
"""Runs the kernel's Python once, for the programs of a group."""


def play(run: Run, programs: np.ndarray, spans: Sequence[Span]) -> bool:
    """Run the programs at once if they are independent; otherwise do nothing.

    Args:
        run: Runs a group.
        programs: The place of each program in the grid, in the launch's order: `[programs, 3]`.
        spans: The memory that the launch may touch.

    Returns:
        Whether the programs ran.
    """
    if len(programs) < 2:
        return False
    touched, groups = Touched(spans), list[ProgramGroup]()
    waiting, runs = [np.arange(len(programs))], 0
    try:
        while waiting:
            runs += 1
            if runs + len(waiting) > len(programs) + 1:
                return False  # one by one they take less time
            indices = waiting.pop()
            group = ProgramGroup(programs[indices], (indices + 1).astype(np.int32), touched)
            try:
                run(group)
                if group.failed:
                    return False
                groups.append(group)
            except Differs as differs:
                waiting += [indices[part] for part in differs.parts]
    except (Dependent, Exception):  # a program that runs by itself raises it again
        return False
    for write in (write for group in groups for write in group.writes):
        write()
    updates = (update for group in groups for update in group.updates)
    for _, update in sorted(updates, key=lambda update: update[0]):
        update()
    return True
