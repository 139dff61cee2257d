"""Cases whose forward died before it is known whether the solution has gradients.

Such a failure is backward's too, unless the solution has no gradients: its backward is unsupported.
The first case may be the one that dies, so its verdicts wait for a later case.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator

from common.grading.grade import NO_GRADIENT
from common.grading.graded import Graded, TooLarge
from common.solutions import Solution
from common.spec import DIRECTIONS
from common.verdicts import UNFINISHED

MOST = 4
"""So many cases of a solution wait: where every case dies, the first is shown soon."""


class Undecided:
    """The cases that wait, by solution."""

    def __init__(self) -> None:
        """Hold no case."""
        self._differentiable: dict[Solution, set[bool]] = defaultdict(set)
        """Whether outputs of the cases so far could be differentiated: {False} if none could."""
        self._waiting: dict[Solution, list[Graded]] = defaultdict(list)

    def take(self, graded: Graded | TooLarge) -> Iterator[Graded | TooLarge]:
        """Yield the case if it is decided, after those that waited for it; else hold it."""
        if isinstance(graded, TooLarge):
            yield graded
            return
        solution = graded.solution
        self._differentiable[solution] |= graded.differentiable
        self._waiting[solution].append(graded)
        known = not _died(graded) or self._differentiable[solution]
        if known or len(self._waiting[solution]) > MOST:
            yield from self._let_go(solution)

    def rest(self) -> Iterator[Graded]:
        """Yield the cases that no later case decides."""
        for solution in list(self._waiting):
            yield from self._let_go(solution)

    def _let_go(self, solution: Solution) -> Iterator[Graded]:
        lacking = self._differentiable[solution] == {False}
        for graded in self._waiting.pop(solution):
            yield _without_backward(graded) if lacking and _died(graded) else graded


def _died(graded: Graded) -> bool:
    """Return whether forward died, and backward has its failure.

    A timeout, after which nothing should wait longer, and want of memory do not count.
    """
    forward, backward = (graded.verdicts.get(each) for each in DIRECTIONS)
    if forward is None or backward is None or forward.verdict == "TIMEOUT" or forward.ran_out:
        return False
    same = (forward.verdict, forward.reason) == (backward.verdict, backward.reason)
    return same and forward.verdict in UNFINISHED


def _without_backward(graded: Graded) -> Graded:
    backward = dataclasses.replace(
        graded.verdicts["backward"],
        verdict=NO_GRADIENT.verdict,
        reason=NO_GRADIENT.reason,
        kind=NO_GRADIENT.kind,
    )
    return dataclasses.replace(graded, verdicts={**graded.verdicts, "backward": backward})
