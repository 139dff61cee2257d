"""A solution's speed over the runs of a device, as far as they measured the whole track; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

from common.board.ranking import Cell, Pair, Score, Track, combined, ranked_times
from common.records.lines import Past, Record, Summary
from common.records.runs import Results, moment


@dataclass(frozen=True)
class Point:
    """The speed in one run."""

    run: str
    when: datetime
    score: Score
    sources: str
    """The digest of what was measured; empty where `prune` has cut it."""


Histories = Mapping[str, list[Point]]
"""By solution, the points in the order of time."""


def histories(results: Results, track: Track) -> Histories:
    """Return every solution's speeds over the runs that timed all the track's cells."""
    found: dict[tuple[str, str], dict[Cell, Record | Past]] = defaultdict(dict)
    cells = set(track.cells)
    lines: Iterable[Record | Past] = chain(results.past, results.rows)
    for line in lines:
        if line.op == track.op and line.tier == "board" and (line.case, line.direction) in cells:
            found[line.solution, line.run][line.case, line.direction] = line
    points: dict[str, list[Point]] = defaultdict(list)
    for (solution, run), rows in found.items():
        times = [pair for row in rows.values() if (pair := _times(row))]
        when = moment(results.names.get(run, ""))
        if len(times) == len(cells) and when:
            sources = next(iter(rows.values()))
            points[solution].append(Point(run, when, combined(times), _sources(sources)))
    return {name: sorted(each, key=lambda point: point.when) for name, each in points.items()}


def _times(row: Record | Past) -> Pair | None:
    if row.verdict != "PASSED":
        return None
    if isinstance(row, Record):
        found = ranked_times(row)
        return (found["solution"], found["eager"]) if found else None
    if row.time is None or row.eager is None:
        return None
    return row.time, Summary(row.eager, row.eager, row.eager)


def _sources(row: Record | Past) -> str:
    return row.sources if isinstance(row, Record) else ""
