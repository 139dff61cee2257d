"""The rows that a board, a plot or a comparison reads; `prune` keeps them."""

from __future__ import annotations

from collections.abc import Container

from common.board.comparison import compare
from common.records.lines import Record
from common.records.runs import Results


def needed(results: Results, known: Container[str]) -> set[tuple[str, ...]]:
    """Return the ids of the rows that anything shows.

    A comparison leaves out solutions that are not in the tree, but one can come back: the rows are
    kept that it reads with them and without them.

    Args:
        results: The records of a device.
        known: The solutions of this tree.
    """
    shown = {row.id for tier in ("board", "plot") for row in results.latest(tier)}
    everyone = {row.solution for row in results.rows}
    compared = {
        (run.run, comparison.op)
        for names in (known, everyone)
        for comparison in compare(results, names)
        for run in (comparison.earlier, comparison.later)
    }
    return shown | {row.id for row in results.rows if _is_compared(row, compared)}


def _is_compared(row: Record, compared: Container[tuple[str, str]]) -> bool:
    return row.tier == "board" and (row.run, row.op) in compared
