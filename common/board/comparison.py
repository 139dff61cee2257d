"""Compare the latest two runs of an op as ratios, to see whether its board repeats."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import geometric_mean

from common.board.devices import Device
from common.board.ranking import QUANTITIES, Quantity, op_order
from common.board.table import UNRANKED, Table, named
from common.records.lines import Record, Run

EDITED = "*"
Pair = tuple[Record, Record]
"""The earlier and the later row of a cell that both runs measured."""


def compare(device: Device) -> dict[str, tuple[str, Table]]:
    """Return a line and a table of ratios for each op that two runs measured.

    The runs are the latest run, interrupted or not, and the last earlier one that shares a cell of
    a known solution with it. The line names them and what changed between them.
    """
    results = device.results
    measured: dict[str, dict[str, dict[tuple[str, ...], Record]]] = {}
    for row in results.rows:
        if row.tier == "board" and row.solution in device.about:
            key = (*row.key, row.track, row.ranked_by)  # the same in two compared rows
            measured.setdefault(row.op, {}).setdefault(row.run, {})[key] = row
    found = {}
    for op in sorted(measured, key=op_order):
        later, *before = [run for run in results.runs if run.run in measured[op]][::-1]
        new = measured[op][later.run]
        for earlier in before:
            old = measured[op][earlier.run]
            if pairs := [(old[key], row) for key, row in new.items() if key in old]:
                words = f"{op}: run {earlier.run}, then {later.run}"
                if changed := list(_changes(earlier, later, pairs)):
                    words += f"; between them changed {', '.join(changed)}"
                found[op] = words, _table(op, pairs)
                break
    return found


def _changes(earlier: Run, later: Run, pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield what changed between the runs other than solutions."""
    for field, words in (("harness", "the harness"), ("clock", "the version of the clock")):
        if any(getattr(was, field) != getattr(row, field) for was, row in pairs):
            yield words
    for name, was in earlier.versions.items():
        if (now := later.versions.get(name, was)) != was:
            yield f"{name} from {was} to {now}"


def _table(op: str, pairs: Sequence[Pair]) -> Table:
    """Return a row for each solution with a time: its ratios of the later speed to the earlier.

    A speed is eager's time over the solution's. A quantity's ratio is the geometric mean over its
    cells.
    """
    ratios, notes = defaultdict[str, dict[Quantity, list[float]]](dict), list[str]()
    edited = {row.solution for was, row in pairs if was.sources != row.sources}
    owners = dict[str, Record]()
    for was, row in sorted(pairs, key=lambda pair: (pair[1].peer, pair[1].solution)):
        if was.verdict != row.verdict:
            place = f"{row.solution} {row.case} {row.direction}"
            notes.append(f"{place}: {was.verdict}, then {row.verdict}")
        for quantity in QUANTITIES:
            both = [quantity.times(each) for each in (was, row)]
            if all(both):
                before, now = (each["eager"].value / each["solution"].value for each in both)
                ratios[row.solution].setdefault(quantity, []).append(now / before)
                owners[row.solution] = row
    columns = [each for each in QUANTITIES if any(each in own for own in ratios.values())]
    lines = [
        (named(owners[solution]) + EDITED * (solution in edited),
         *(f"{geometric_mean(own[each]):.3f}" if each in own else UNRANKED for each in columns))
        for solution, own in ratios.items()
    ]  # fmt: skip
    if edited & ratios.keys():
        notes.append(f"{EDITED} its source changed between the runs: this may be what it changed")
    header = ("solution", *(column.name for column in columns))
    return Table(op, header, tuple(lines), tuple(notes), tuple(owners.values()))
