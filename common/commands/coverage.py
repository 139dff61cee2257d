"""The share of a tier that each solution answers: one that answers nothing has passed nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from common.records.lines import Record
    from common.verdicts import Verdict

FEW = 0.1
"""The share of a tier's cases below which a solution is told how few it answers."""


class Coverage:
    """The cases of a tier, by solution, and those that a solution does not call unsupported."""

    def __init__(self) -> None:
        """Begin without a case."""
        self._cases: dict[str, set[str]] = defaultdict(set)
        self._answered: dict[str, set[str]] = defaultdict(set)

    def add(self, found: Sequence[Verdict | Record]) -> None:
        """Add the verdicts of one case; a failure in either direction is an answer too."""
        for verdict in found:
            self._cases[verdict.solution].add(verdict.case)
            if verdict.verdict != "UNSUPPORTED":
                self._answered[verdict.solution].add(verdict.case)

    @property
    def silent(self) -> set[str]:
        """The solutions that answer no case."""
        return self._cases.keys() - self._answered.keys()

    def lines(self) -> Iterator[str]:
        """Yield a line on each solution that answers no case, or fewer than a tenth of them."""
        for solution, cases in self._cases.items():
            count = len(self._answered.get(solution, ()))
            if not count:
                yield f"{solution} answers no case: it leaves all {len(cases)} unsupported"
            elif count < FEW * len(cases):
                yield f"{solution} answers {count} of {len(cases)} cases, fewer than a tenth"
