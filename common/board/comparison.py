"""Compare the latest two runs of an op as ratios, to see whether its board repeats.

The comparison uses only the cells that both runs measured, so that both scores are over the same
cases.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from common.board.ranking import Entry, Track, rank, ratio
from common.board.table import EDITED, UNRANKED, Table, named, speed, where
from common.records.lines import Record, Run
from common.records.runs import Results

HEADER = ("solution", "earlier", "later", "ratio", "furthest ratio", "of its cases")
Rows = Mapping[tuple[str, ...], Record]


@dataclass(frozen=True)
class Comparison:
    """Both runs of one op."""

    op: str
    earlier: Run
    later: Run
    changed: tuple[str, ...]
    """The changes between the runs other than changes of solutions."""
    tables: tuple[Table, ...]
    """A table of ratios for each track."""


def compare(results: Results, known: Container[str]) -> list[Comparison]:
    """Return a comparison of the known solutions for each op that two finished runs measured.

    The runs are the latest run, and the last earlier run that shares a cell with the latest run.
    """
    measured: dict[str, dict[str, dict[tuple[str, ...], Record]]] = {}
    for row in results.rows:
        if row.tier == "board" and row.run in results.finished and row.solution in known:
            key = (*row.key, row.track, row.ranked_by)  # the same in two compared rows
            measured.setdefault(row.op, {}).setdefault(row.run, {})[key] = row
    found = []
    for op, by_run in sorted(measured.items()):
        later, *before = [run for run in results.runs if run.run in by_run][::-1]
        shares = (run for run in before if by_run[run.run].keys() & by_run[later.run].keys())
        if earlier := next(shares, None):
            found.append(_compared(op, earlier, later, by_run[earlier.run], by_run[later.run]))
    return found


def _compared(op: str, earlier: Run, later: Run, old: Rows, new: Rows) -> Comparison:
    shared = [(old[key], row) for key, row in new.items() if key in old]
    before, after = rank(row for row, _ in shared), rank(row for _, row in shared)
    versions = [(name, was, later.versions[name]) for name, was in earlier.versions.items()
                if name in later.versions]  # fmt: skip
    changed = [f"{name} from {was} to {now}" for name, was, now in versions if was != now]
    for field, words in (("clock", "the version of the clock"), ("harness", "the harness")):
        if any(getattr(row, field) != getattr(newer, field) for row, newer in shared):
            changed.insert(0, words)
    return Comparison(op, earlier, later, tuple(changed), tuple(map(_table, before, after)))


def _table(before: Track, after: Track) -> Table:
    """Return a row for each solution with a time: its scores, and its ratios of later to earlier.

    The furthest ratio is that of the case whose speed changed the most.
    """
    earlier = {entry.solution: entry for entry in before.entries}
    lines, entries, notes, edited = [], [], list[str](), False
    for entry in after.entries:
        old = earlier[entry.solution]
        pairs = [(old.cells[cell], row) for cell, row in entry.cells.items()]
        notes += [f"{row.solution} {row.case} {row.direction}: {was.verdict}, then {row.verdict}"
                  for was, row in pairs if was.verdict != row.verdict]  # fmt: skip
        if timed := [(ratio(row) / ratio(was), row) for was, row in pairs if was.gpu and row.gpu]:
            new = any(row.sources != was.sources for was, row in pairs)
            lines.append(_line(old, entry, timed, named(entry) + EDITED * new))
            entries.append(entry)
            edited |= new
    if edited:
        notes.append(f"{EDITED} its source changed between the runs: this may be what it changed")
    return Table(f"{after.op}: {after.name}", HEADER, tuple(lines), tuple(notes), tuple(entries))


def _line(
    old: Entry, entry: Entry, timed: Sequence[tuple[float, Record]], name: str
) -> tuple[str, ...]:
    change = f"{entry.score.value / old.score.value:.3f}" if entry.score and old.score else UNRANKED
    furthest, row = max(timed, key=lambda pair: max(pair[0], 1 / pair[0]))
    return name, speed(old), speed(entry), change, f"{furthest:.3f}", where(row)
