"""Two runs of a track side by side as rows of text, which the terminal draws."""

from __future__ import annotations

from collections.abc import Sequence

from common.board.comparison import SHORT, STEADY, Both, Move, Pair
from common.board.table import EDITED, Table, named, speed, where
from common.records.lines import Record


def table_of(both: Both) -> Table:
    """Return a row for each solution: its score in either run, and the case that moved furthest."""
    header = ("solution", "earlier", "later", "change", "largest move", "of its cases")
    pairs = [pair for pair in both.pairs if pair.moves]
    notes = [_steadiness(both.moves), *_order(both), *_verdicts(both.verdicts)]
    if any(pair.edited for pair in pairs):
        notes.append(f"{EDITED} its source changed between the runs: this may be what it changed")
    title = f"{both.op}: {both.name}"
    return Table(title, header, tuple(map(_compared, pairs)), tuple(notes))


def _compared(pair: Pair) -> tuple[str, ...]:
    change = "–" if pair.change is None else f"{pair.change:+.1%}"
    furthest = max(pair.moves, key=lambda move: move.size)
    name = named(pair.later) + EDITED * pair.edited
    scores = (speed(pair.earlier), speed(pair.later))
    return name, *scores, change, f"{furthest.change:+.1%}", where(furthest.later)


def _steadiness(moves: Sequence[Move]) -> str:
    """Return a line on the rows that hardly moved, out of those that are not too short to say."""
    long = [move for move in moves if not move.short]
    rest = len(moves) - len(long)
    shorter = f"; shorter, and not counted: {rest}" if rest else ""
    if not long:
        return f"no row of a case above {SHORT:g} µs was timed in both runs{shorter}"
    steady = sum(move.size <= STEADY for move in long)
    furthest = max(long, key=lambda move: move.size)
    return (
        f"{steady} of {len(long)} rows of cases above {SHORT:g} µs moved by no more than"
        f" {100 * STEADY:g} %; the largest moved by {100 * furthest.size:.1f} %"
        f" ({_full(furthest.later)}){shorter}"
    )


def _order(both: Both) -> list[str]:
    scored = [pair for pair in both.pairs if pair.change is not None]
    if not both.swapped:
        return ["the order is the same but for ties"] * (len(scored) > 1)
    pairs = (f"{ahead.later.solution} and {behind.later.solution}"
             for ahead, behind in both.swapped)  # fmt: skip
    return [f"swapped, although their intervals are apart: {', '.join(pairs)}"]


def _verdicts(changed: Sequence[Move]) -> list[str]:
    return [
        f"{_full(move.later)}: {move.earlier.verdict}, then {move.later.verdict}"
        for move in changed
    ]


def _full(row: Record) -> str:
    return f"{row.solution} {row.case} {row.direction}"
