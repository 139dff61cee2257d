"""Compare the latest two runs of an op as ratios, to see whether its board repeats.

The comparison uses only the cells that both runs measured, so that both scores are over the same
cases.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from common.board.devices import Device
from common.board.ranking import Track, median, op_order, rank
from common.board.table import UNRANKED, Table, figure, named, where
from common.records.lines import Record, Run

EDITED = "*"
HEADER = ("solution", "earlier", "later", "ratio", "furthest ratio", "of its cases")


Comparison = tuple[str, list[Table]]
"""A line on two runs and what changed between them, and a table of ratios for each track."""


def compare(device: Device) -> dict[str, Comparison]:
    """Return a comparison of the known solutions for each op that two finished runs measured.

    The runs are the latest run, and the last earlier run that shares a cell with the latest run.
    """
    results = device.results
    measured: dict[str, dict[str, dict[tuple[str, ...], Record]]] = {}
    for row in results.rows:
        if row.tier == "board" and row.run in results.finished and row.solution in device.about:
            key = (*row.key, row.track, row.ranked_by)  # the same in two compared rows
            measured.setdefault(row.op, {}).setdefault(row.run, {})[key] = row
    found = {}
    for op in sorted(measured, key=op_order):
        by_run = measured[op]
        later, *before = [run for run in results.runs if run.run in by_run][::-1]
        new = by_run[later.run]
        for earlier in before:
            old = by_run[earlier.run]
            if shared := [(old[key], row) for key, row in new.items() if key in old]:
                tracks = (rank(rows) for rows in zip(*shared, strict=True))
                words = f"{op}: run {earlier.run}, then {later.run}"
                if changed := list(_changes(earlier, later, shared)):
                    words += f"; between them changed {', '.join(changed)}"
                found[op] = words, list(map(_table, *tracks))
                break
    return found


def _changes(earlier: Run, later: Run, rows: Sequence[tuple[Record, Record]]) -> Iterator[str]:
    """Yield what changed between the runs other than solutions."""
    for field, words in (("harness", "the harness"), ("clock", "the version of the clock")):
        if any(getattr(was, field) != getattr(row, field) for was, row in rows):
            yield words
    for name, was in earlier.versions.items():
        if (now := later.versions.get(name, was)) != was:
            yield f"{name} from {was} to {now}"


def _table(before: Track, after: Track) -> Table:
    """Return a row for each solution with a time: its scores, and its ratios of later to earlier.

    The furthest ratio is that of the case whose speed changed the most.
    """
    lines, owners, notes = [], [], []
    for entry in after.entries:
        old = before.entry(entry.solution)
        assert old
        pairs = [(old.cells[cell], row) for cell, row in entry.cells.items()]
        notes += [f"{row.solution} {row.case} {row.direction}: {was.verdict}, then {row.verdict}"
                  for was, row in pairs if was.verdict != row.verdict]  # fmt: skip
        # of eager's time over the solution's, in the later run and in the earlier run
        timed = [
            (median(row, "eager") / median(row) / (median(was, "eager") / median(was)), row)
            for was, row in pairs
            if was.gpu and row.gpu
        ]
        if timed:
            furthest, row = max(timed, key=lambda pair: max(pair[0], 1 / pair[0]))
            main = after.main
            scores = [each.scores.get(main) for each in (old, entry)]
            earlier, later = (each.main.value if each else math.nan for each in scores)
            edited = any(row.sources != was.sources for was, row in pairs)
            lines.append((
                named(entry) + EDITED * edited, *map(figure, scores),
                f"{later / earlier:.3f}" if all(scores) else UNRANKED,
                f"{furthest:.3f}", where(row),
            ))  # fmt: skip
            owners.append(entry)
    if any(name.endswith(EDITED) for name, *_ in lines):
        notes.append(f"{EDITED} its source changed between the runs: this may be what it changed")
    return Table(after.title, HEADER, tuple(lines), tuple(notes), tuple(owners))
