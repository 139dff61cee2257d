"""The elements that the programs of a launch touch, to find out whether they are independent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from common.sandbox.interpreter.conflicts import ATOMIC, READS
from common.sandbox.interpreter.spans import Span

SEVERAL = -1
"""Stands for several programs; 0 stands for none."""


class Dependent(BaseException):
    """The programs of a launch cannot run at once; no handler of a kernel may catch this."""


class Touched:
    """The programs that have read and written each element of a launch's memory.

    A program is a number from 1 on.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        """Begin with no access to these spans, which may overlap."""
        self._regions: list[_Region] = []
        for span in sorted(spans, key=lambda span: span.first):
            if self._regions and span.first < self._regions[-1].end:
                self._regions[-1].end = max(self._regions[-1].end, span.end)
            else:
                self._regions.append(_Region(span.first, span.end))

    def add(self, verb: str, addresses: np.ndarray, width: int, programs: np.ndarray) -> None:
        """Add an access of each program in `programs` to the address at the same index.

        Raises:
            Dependent: A program changes an element that another touches, reads what it has written,
                or leaves the launch's memory.
        """
        for region, lanes in self._by_region(addresses, width):
            elements = region.elements(addresses[lanes], width)
            others = programs[lanes]
            if verb == READS:
                region.read(elements, others)
            elif verb == ATOMIC:
                region.update(elements)
            else:
                region.write(elements, others)

    def _by_region(
        self, addresses: np.ndarray, width: int
    ) -> Iterator[tuple[_Region, np.ndarray | slice]]:
        """Yield each region that some of the addresses lie in, and their indices."""
        if not addresses.size:
            return
        low, high = int(addresses.min()), int(addresses.max()) + width
        for region in self._regions:
            if region.first <= low and high <= region.end:
                yield region, slice(None)
                return
        left = np.ones(addresses.shape, dtype=bool)
        for region in self._regions:
            lanes = (addresses >= region.first) & (addresses + np.uint64(width) <= region.end)
            if lanes.any():
                left &= ~lanes
                yield region, lanes
        if left.any():
            raise Dependent


class _Region:
    """Memory from `first` to `end`, exclusive, whose elements all have the same width."""

    def __init__(self, first: int, end: int) -> None:
        self.first, self.end = first, end
        self._width = 0

    def elements(self, addresses: np.ndarray, width: int) -> np.ndarray:
        """Return the indices of the elements at these addresses."""
        if not self._width:
            self._width = width
            self._readers, self._writers = np.zeros(
                (2, (self.end - self.first) // width), dtype=np.int32
            )
        offsets = addresses - np.uint64(self.first)
        elements, rest = np.divmod(offsets, np.uint64(width))
        if width != self._width or rest.any():
            raise Dependent
        return elements.astype(np.int64)

    def read(self, elements: np.ndarray, programs: np.ndarray) -> None:
        if self._writers[elements].any():
            raise Dependent  # a store waits until all programs have run
        earlier = self._readers[elements]
        self._readers[elements] = np.where(_others(earlier, programs), SEVERAL, programs)
        several = self._readers[elements] != programs
        self._readers[elements[several]] = SEVERAL

    def write(self, elements: np.ndarray, programs: np.ndarray) -> None:
        readers, earlier = self._readers[elements], self._writers[elements]
        self._writers[elements] = programs
        later = self._writers[elements]  # of several lanes, the last is the writer
        if any(_others(each, programs).any() for each in (readers, earlier, later)):
            raise Dependent

    def update(self, elements: np.ndarray) -> None:
        """Add atomic updates, which several programs may make."""
        if self._readers[elements].any() or (self._writers[elements] > 0).any():
            raise Dependent
        self._writers[elements] = SEVERAL


def _others(touched: np.ndarray, programs: np.ndarray) -> np.ndarray:
    """Return where a program other than the same index's has touched an element."""
    others: np.ndarray = (touched != 0) & (touched != programs)
    return others
