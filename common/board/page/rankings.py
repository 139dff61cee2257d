"""A track ranked whole, by direction, by case and by both; the page switches between these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from common.board.devices import Section
from common.board.ranking import Entry, Track, rank, ranked_times
from common.board.table import About, stale
from common.records.lines import Record, Summary

ALL = ""
"""Every direction, or every case."""


@dataclass(frozen=True)
class Ranking:
    """The ranking of one choice of directions and cases of a track."""

    direction: str
    case: str
    track: Track
    about: Mapping[str, About]

    @cached_property
    def top(self) -> float:
        """The speed at which the bars are full."""
        return top(self.track)

    @cached_property
    def _tied(self) -> Counter[int | None]:
        return Counter(entry.rank for entry in self.track.entries)

    @property
    def single(self) -> bool:
        """Whether the choice is one direction of one case, so that there is one time to show."""
        return len(self.track.cells) == 1

    def place(self, entry: Entry) -> str:
        """Return the place, such as `2`, `2=` of several that tie, or a dash."""
        return f"{entry.rank}{'=' * (self._tied[entry.rank] > 1)}" if entry.rank else "–"

    def time(self, entry: Entry) -> Summary | None:
        """Return the time of the single case, by the clock that ranks it."""
        row = self.track.row(entry, self.track.cells[0])
        return ranked_times(row)["solution"] if row and row.gpu else None

    @cached_property
    def memory(self) -> bool:
        """Whether any entry's peak memory is known."""
        return any(entry.peak_memory is not None for entry in self.track.entries)

    def stale(self, entry: Entry) -> bool:
        """Return whether the source that is shown is not the one that was measured."""
        return stale(entry, self.about)


def rankings(section: Section, track: Track, about: Mapping[str, About]) -> Iterator[Ranking]:
    """Yield the ranking of each choice of the track that has a row; the whole track is first.

    >>> [(each.direction, each.case) for each in rankings(section, track, about)]
    [('', ''), ('', 'c1'), ('forward', ''), ('forward', 'c1')]
    """
    rows = [row for row in section.rows if row.track == track.name]
    cases = list(dict.fromkeys(case for case, _ in track.cells))
    places = {(track.op, track.name, e.solution): e.rank for e in track.entries if e.rank}
    for direction in (ALL, *directions(track)):
        for case in (ALL, *cases):
            if chosen := _chosen(rows, direction, case):
                (of_choice,) = rank(chosen, {} if direction or case else places)
                yield Ranking(direction, case, of_choice, about)


def top(track: Track) -> float:
    """Return the greatest speed of any interval; 0 without a speed."""
    return max((entry.score.high for entry in track.entries if entry.score), default=0.0)


def directions(track: Track) -> list[str]:
    """Return the directions that the track ranks."""
    return list(dict.fromkeys(direction for _, direction in track.cells))


def _chosen(rows: Sequence[Record], direction: str, case: str) -> list[Record]:
    return [row for row in rows if direction in (ALL, row.direction) and case in (ALL, row.case)]
