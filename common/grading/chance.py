"""The choices of one worker's cases that its solution may not foresee."""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

State = tuple[Counter[str], dict[str, list[int]]]
LONGEST_WAIT = 2
"""A choice that is made once in so many cases comes at the latest after twice as many."""


class Chance:
    """Unforeseeable choices, which come often enough for a tier of twenty cases to have each."""

    def __init__(self) -> None:
        """Begin with no choice made."""
        self._waits: Counter[str] = Counter()
        self._bags: dict[str, list[int]] = defaultdict(list)
        self.made: dict[str, int] = {}
        """The choices of the latest case; `Answered.by` sets an empty one for each."""
        self._again: Mapping[str, int] = {}

    @contextlib.contextmanager
    def again(self, made: Mapping[str, int]) -> Iterator[None]:
        """Choose the same once more, so that a case whose answer did not count is asked as much."""
        self._again = made
        try:
            yield
        finally:
            self._again = {}

    def state(self) -> State:
        """Return what the next choices depend on; see `go_back`."""
        return Counter(self._waits), {what: list(bag) for what, bag in self._bags.items()}

    def go_back(self, state: State) -> None:
        """Undo the choices since then: those of a case that a solution does not support."""
        waits, bags = state
        self._waits = Counter(waits)
        self._bags = defaultdict(list, {what: list(bag) for what, bag in bags.items()})

    def once_in(self, every: int, what: str) -> bool:
        """Return True once in so many calls on average, whatever the calls before returned.

        Only a long wait ends for certain: no call is ever certain to return False.
        """
        if what in self._again:
            return bool(self._again[what])
        self._waits[what] += 1
        chosen = not secrets.randbelow(every) or self._waits[what] > LONGEST_WAIT * every
        if chosen:
            self._waits[what] = 0
        self.made[what] = chosen
        return chosen

    def in_turn(self, among: int, what: str) -> int:
        """Return a number below `among`: each comes once in so many calls, in a random order."""
        if what in self._again:
            return self._again[what]
        bag = self._bags[what]
        if not bag:
            bag += secrets.SystemRandom().sample(range(among), among)
        self.made[what] = bag.pop()
        return self.made[what]
