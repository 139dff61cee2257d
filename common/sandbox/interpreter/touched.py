"""The elements that the programs of a launch touch, to find out whether they are independent."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from common.sandbox.interpreter.conflicts import ATOMIC, READS
from common.sandbox.interpreter.spans import Span

SEVERAL = -1
"""Stands for several programs; 0 stands for none."""


class Dependent(BaseException):
    """The programs of a launch cannot run at once; no handler of a kernel may catch this."""


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
            Dependent: A program changes an element that another touches, or reads what it has
                written; or the addresses lie in no region, or in several.
        """
        if not addresses.size:
            return
        first, end = int(addresses.min()), int(addresses.max()) + width
        region = next((region for region in self._regions if region.holds(first, end)), None)
        if region is None:
            raise Dependent
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
