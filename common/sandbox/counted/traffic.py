"""The memory traffic and the products of one program, as Triton's interpreter makes them."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from triton._C.libtriton import ir
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from common.sandbox.counted.sample import Loops
from common.sandbox.interpreter.lanes import active, bare, width_of
from common.sandbox.interpreter.spans import Span

SECTOR = 32
"""The bytes that a GPU's caches and memory move at least."""


class WritesIntegers(Exception):
    """A kernel stores integers, by which later sizes may be decided: it has to run whole."""


Region = tuple[int, bool]
"""The place of a tensor among the launch's spans, and whether it is stored to."""


@dataclass
class Touched:
    """The distinct sectors of a region that a program touches."""

    sectors: set[int] = field(default_factory=set)
    """Those of the iterations that were run."""
    nbytes: float = 0
    """Of all iterations."""


@dataclass
class Program:
    """The work of one program; a number counts all iterations that a loop's sample stands for."""

    loaded: float = 0
    """Bytes that lanes load, those of the same address each."""
    stored: float = 0
    requested: float = 0
    """Bytes of the sectors that each load touches."""
    sent: float = 0
    """Bytes of the sectors that each store touches."""
    flops: Counter[str] = field(default_factory=Counter)
    """Of `tl.dot`, by the operands' dtype."""
    tile: tuple[int, int, int] = (0, 0, 0)
    """m, n and k of the largest product."""
    rounds: float = 0
    """The waits for memory, one after the other: loads up to the next store are one, and a scalar
    is one by itself, since an address or a branch follows from it."""
    touched: dict[Region, Touched] = field(default_factory=dict)


class Traffic:
    """Counts the program that runs now."""

    def __init__(self, loops: Loops) -> None:
        """Begin without a launch."""
        self._loops = loops
        self.whole = False
        """The launch runs whole, so that it may store integers."""
        self.begin_launch(())

    def begin_launch(self, spans: tuple[Span, ...]) -> None:
        """Count the programs of a launch with these spans from now on."""
        self._spans = spans
        self.begin_program()

    def begin_program(self) -> Program:
        """Count another program from now on, and return its work, which grows."""
        self._work, self._pending = Program(), False
        return self._work

    def loads(self, pointers: TensorHandle, mask: np.ndarray | None) -> None:
        """Count a load."""
        size, sectors = self._touch(pointers, mask, stores=False)
        self._work.loaded += size
        self._work.requested += sectors
        self._pending |= size > 0
        if pointers.data.size == 1:
            self._wait()

    def stores(self, pointers: TensorHandle, mask: np.ndarray | None) -> None:
        """Count a store.

        Raises:
            WritesIntegers: The launch has to run whole, and does not yet.
        """
        if not self.whole and not pointers.get_element_ty().is_floating():
            raise WritesIntegers
        size, sectors = self._touch(pointers, mask, stores=True)
        self._work.stored += size
        self._work.sent += sectors
        self._wait()

    def multiplies(self, a: TensorHandle, b: TensorHandle, precision: Any) -> None:
        """Count a product of blocks."""
        (*batch, m, k), n = a.data.shape, b.data.shape[-1]
        kind = a.dtype.scalar.name
        if kind == "fp32":
            kind = "tf32" if precision != ir.INPUT_PRECISION.IEEE else "fp32"
        operations = 2 * int(np.prod(batch)) * m * n * k
        self._work.flops[kind] += operations * self._loops.weight
        if m * n * k > np.prod(self._work.tile):
            self._work.tile = (m, n, k)

    def end_program(self) -> None:
        """Count the loads that no store followed."""
        self._wait()

    def _wait(self) -> None:
        self._work.rounds += self._pending * self._loops.weight
        self._pending = False

    def _touch(
        self, pointers: TensorHandle, mask: np.ndarray | None, stores: bool
    ) -> tuple[float, float]:
        """Count the distinct sectors of an access; return the bytes of its lanes and sectors."""
        addresses = active(pointers, mask).ravel()
        if not addresses.size:
            return 0.0, 0.0
        sectors = np.unique(addresses // np.uint64(SECTOR)).tolist()
        region = self._place(int(addresses[0])), stores
        touched, times = self._work.touched.setdefault(region, Touched()), self._loops.weight
        before = len(touched.sectors)
        touched.sectors.update(sectors)
        touched.nbytes += SECTOR * (len(touched.sectors) - before) * times
        return times * addresses.size * width_of(pointers), times * SECTOR * len(sectors)

    def _place(self, address: int) -> int:
        return next((n for n, s in enumerate(self._spans) if s.first <= address < s.end), -1)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Have the interpreter report to this object, and skip the arithmetic of products."""
        builder = InterpreterBuilder
        patches: dict[str, Callable[[Any], Any]] = {
            "create_masked_load": self._around(self.loads),
            "create_masked_store": lambda known: self._before_store(known, 1),
            "create_atomic_rmw": lambda known: self._before_atomic(known, 3),
            "create_atomic_cas": lambda known: self._before_atomic(known, None),
            "create_dot": self._in_place_of_dot,
        }
        known = {name: getattr(builder, name) for name in patches}
        try:
            for name, patch in patches.items():
                setattr(builder, name, patch(known[name]))
            yield
        finally:
            for name, method in known.items():
                setattr(builder, name, method)

    def _around(self, count: Callable[..., None]) -> Callable[[Any], Any]:
        def patch(known: Any) -> Any:
            @functools.wraps(known)
            def counted(builder: Any, pointers: Any, mask: Any, *rest: Any, **named: Any) -> Any:
                count(pointers, bare(mask))
                return known(builder, pointers, mask, *rest, **named)

            return counted

        return patch

    def _before_store(self, known: Any, mask_at: int) -> Any:
        @functools.wraps(known)
        def counted(builder: Any, pointers: Any, *rest: Any) -> Any:
            self.stores(pointers, bare(rest[mask_at]))
            return known(builder, pointers, *rest)

        return counted

    def _before_atomic(self, known: Any, mask_at: int | None) -> Any:
        """Count an update as a load and a store; `mask_at` counts from the builder on."""

        @functools.wraps(known)
        def counted(builder: Any, *rest: Any) -> Any:
            pointers = rest[0] if mask_at is None else rest[1]
            mask = None if mask_at is None else bare(rest[mask_at])
            self.loads(pointers, mask)
            self.stores(pointers, mask)
            return known(builder, *rest)

        return counted

    def _in_place_of_dot(self, known: Any) -> Any:
        @functools.wraps(known)
        def counted(builder: Any, a: Any, b: Any, d: Any, precision: Any, *rest: Any) -> Any:
            self.multiplies(a, b, precision)
            return d if d.dtype.scalar.is_floating() else known(builder, a, b, d, precision, *rest)

        return counted
