"""The units of one kind of device: those that wait, and those to be done again elsewhere."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator

import msgspec

from common.engines.units import Answer, Finished, Rows, TooLarge, Unit, Verdicts

TRIES = 3
"""Stations that may be lost in a case before each of its solutions has it alone."""
SUSPECTS = 16
"""The cases of a lost unit, from the first unfinished one on, that may have been under way."""
LIVES = 2
"""Cases in which a solution may end its station before it is not run again."""


class Gathered:
    """The answers to one unit; a case's are let go once all of its solutions have answered."""

    def __init__(self, unit: Unit) -> None:
        """Wait for the answers to a unit."""
        self._unit = unit
        self._waiting: dict[str, dict[str, Rows | Verdicts]] = {}
        self._too_large: dict[str, TooLarge] = {}
        self.whole: set[str] = set()
        """The cases that were let go."""

    def take(self, event: Answer | Finished) -> Iterator[list[Answer]]:
        """Yield the answers of each case that is whole now: at the end, of all that are left.

        Raises:
            RuntimeError: The unit has ended without an answer that was due.
        """
        if isinstance(event, TooLarge):
            self._too_large[event.case] = event  # others may still answer
        elif isinstance(event, Finished):
            for case in self._unit.cases:
                yield from self._let_go(case)
        else:
            solution, case = event.of
            found = self._waiting.setdefault(case, {})
            found[solution] = event
            if found.keys() == self._unit.due(case) and case not in self._too_large:
                yield from self._let_go(case)

    def _let_go(self, case: str) -> Iterator[list[Answer]]:
        if case in self.whole:
            return
        found, too_large = self._waiting.pop(case, {}), self._too_large.get(case)
        if not too_large and (missing := self._unit.due(case) - found.keys()):
            raise RuntimeError(f"no answer for {case} of {', '.join(sorted(missing))}")
        self.whole.add(case)
        yield [*found.values(), *filter(None, [too_large])]


class Work:
    """The units that stations of one kind take; every method may be called from any thread."""

    def __init__(self, units: Iterable[Unit], stations: Collection[str]) -> None:
        """Take the units and the names of the stations."""
        self._waiting, self._away = deque(units), 0
        self._stations = set(stations)
        self._ended: Counter[str] = Counter()
        """The cases in which each solution, by itself, ended its station each time."""
        self._closed = False
        self._changed = threading.Condition()

    def close(self) -> None:
        """Give no unit out any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def take(self, station: str) -> Unit | None:
        """Return a unit for the station, None once all are done.

        A unit in which this station was lost waits for another one, as long as there is one.
        """
        with self._changed:
            while not self._closed and (self._waiting or self._away):
                if unit := self._next(station):
                    self._away += 1
                    return unit
                self._changed.wait()
            return None

    def _next(self, station: str) -> Unit | None:
        for unit in self._waiting:
            if station not in unit.lost_on or self._stations <= {*unit.lost_on}:
                self._waiting.remove(unit)
                return self._without_the_dead(unit)
        return None

    def _without_the_dead(self, unit: Unit) -> Unit:
        """Return the unit for the solutions that may run; the others' part waits, as crashed."""
        dead = {each for each in unit.solutions if self._ended[each] >= LIVES}
        if not dead or unit.crashed:
            return unit
        reason = f"not run again after it ended the harness in {LIVES} cases"
        alive = tuple(each for each in unit.solutions if each not in dead)
        crashed = msgspec.structs.replace(unit, solutions=tuple(sorted(dead)), crashed=reason)
        if not alive:
            return crashed
        self._waiting.append(crashed)
        self._changed.notify_all()
        return msgspec.structs.replace(unit, solutions=alive)

    def done(self) -> None:
        """Count a unit as done."""
        with self._changed:
            self._away -= 1
            self._changed.notify_all()

    def lost(self, unit: Unit, station: str, whole: Collection[str]) -> None:
        """Take back what a lost station has not come to the end of.

        Args:
            unit: The unit.
            station: The station's name.
            whole: The cases of which all answers came.
        """
        rest = [case for case in unit.cases if case not in whole]
        lost = msgspec.structs.replace(unit, lost_on=(*unit.lost_on, station))
        with self._changed:
            self._away -= 1
            self._waiting.extendleft(reversed(list(self._again(lost, rest))))
            self._changed.notify_all()

    def leave(self, station: str) -> None:
        """Count no longer on a station."""
        with self._changed:
            self._stations.discard(station)
            self._changed.notify_all()

    def others(self, station: str) -> bool:
        """Return whether there are other stations."""
        with self._changed:
            return bool(self._stations - {station})

    @property
    def left(self) -> bool:
        """Whether a unit waits or is under way."""
        with self._changed:
            return bool(self._waiting or self._away)

    def _again(self, unit: Unit, rest: list[str]) -> Iterator[Unit]:
        """Yield the parts of a lost unit, the smaller the more often its cases were lost."""
        tries = unit.tries + 1
        if not rest:  # lost after its last answer
            return
        if unit.crashed:
            yield msgspec.structs.replace(unit, cases=tuple(rest))
            return
        if tries > TRIES:  # one case and one solution
            self._ended[unit.solutions[0]] += 1
            reason = f"its harness ended in each of {tries} tries, the last with this case alone"
            yield msgspec.structs.replace(unit, tries=tries, crashed=reason)
            return
        suspects, others = rest[:SUSPECTS], rest[SUSPECTS:]
        yield from _one_by_one(msgspec.structs.replace(unit, tries=tries), suspects)
        if others:
            yield msgspec.structs.replace(unit, cases=tuple(others), lost_on=())


def _one_by_one(unit: Unit, cases: Iterable[str]) -> Iterator[Unit]:
    """Yield some of a unit's cases, each by itself; for the last try, each solution by itself."""
    last = unit.tries == TRIES
    for case in cases:
        for solutions in [(each,) for each in unit.solutions] if last else [unit.solutions]:
            if any((each, case) not in unit.done for each in solutions):
                yield msgspec.structs.replace(unit, cases=(case,), solutions=solutions)
