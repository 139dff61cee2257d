"""A ranked track as rows of text, which the terminal and Markdown only draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.board.comparison import SHORT, STEADY, Both, Move, Pair
from common.board.ranking import LIMITS, Cell, Entry, Track, limit, median, share
from common.records.runs import Record

DIRECTION = {"forward": "forward", "backward": "forward + backward (backward alone)"}
STALE = "†"
DISTURBED = "‡"
EDITED = "*"
MARKS = STALE + DISTURBED + EDITED


@dataclass(frozen=True)
class About:
    """What the board says of a solution that no record holds: read as text, never run."""

    note: str
    digest: str


@dataclass(frozen=True)
class Table:
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    footnotes: tuple[str, ...] = ()


def ranking(track: Track, about: Mapping[str, About], timed: bool, where: bool = True) -> Table:
    """One row a solution: its place, its speed, how close to the limit, how exact, how complete.

    With `where`, the case that is furthest from the limit is named.
    """
    header = ["", "solution", "covers", "error / eager's", "note"]
    if timed:
        header[2:2] = ["× eager", "worst share of limit"]
    rows = tuple(tuple(_ranked(entry, track, about, timed, where)) for entry in track.entries)
    stale = any(_stale(entry, about) for entry in track.entries)
    notes = [f"{STALE} measured before its source last changed"] * stale
    notes += _disturbances(track) if timed else []
    return Table(f"{track.op}: {track.name}", tuple(header), rows, tuple(notes))


def _ranked(
    entry: Entry, track: Track, about: Mapping[str, About], timed: bool, where: bool
) -> list[str]:
    known = about.get(entry.solution)
    name = named(entry) + STALE * _stale(entry, about)
    name += DISTURBED * bool(timed and _disturbed(entry))
    covers = f"{entry.covered}/{len(track.cells)}"
    error = "" if entry.error is None else f"{entry.error:.2f}"
    note = entry.lacks or (known.note if known else "")
    if not timed:
        return ["", name, covers, error, note]
    share = _share(entry, where)
    return [str(entry.rank or "–"), name, _speed(entry), share, covers, error, note]


def named(who: Entry | Record) -> str:
    """A peer stands in parentheses."""
    return f"({who.solution})" if who.peer else who.solution


def _stale(entry: Entry, about: Mapping[str, About]) -> bool:
    known = about.get(entry.solution)
    return known is not None and any(r.sources != known.digest for r in entry.cells.values())


def _disturbed(entry: Entry) -> list[Record]:
    return [row for row in entry.cells.values() if row.disturbed]


def _disturbances(track: Track) -> list[str]:
    """One footnote for all: what disturbed, and how many rows of how many."""
    rows = [row for entry in track.entries for row in _disturbed(entry)]
    if not rows:
        return []
    kinds = ", ".join(sorted({kind for row in rows for kind in row.disturbed.split(", ")}))
    timed = sum(bool(row.gpu) for entry in track.entries for row in entry.cells.values())
    return [f"{DISTURBED} measured in part on a throttled or shared GPU: {kinds} ({len(rows)} of"
            f" the table's {timed} timed rows)"]  # fmt: skip


def _speed(entry: Entry) -> str:
    if entry.score is None:
        return "–"
    score = entry.score
    half = max(score.high - score.value, score.value - score.low)
    return f"{score.value:.2f} ± {half:.2f}"


def _share(entry: Entry, where: bool) -> str:
    if entry.worst_share is None:
        return "–"
    row = entry.worst_share
    value, of = share(row), limit(row)[1]
    percent = f"{value:.0%}" if value > 0.01 else f"{value:.2%}"
    return f"{percent} of {of}" + f" ({_where(row)})" * where


def _where(row: Record) -> str:
    return row.case + ", with backward" * (row.direction == "backward")


def times(track: Track) -> list[Table]:
    """For each direction the median microseconds of every solution in every case."""
    tables = []
    for direction, words in DIRECTION.items():
        cells = [cell for cell in track.cells if cell[1] == direction]
        if not cells:
            continue
        header = ("solution", *(_heading(track, cell) for cell in cells))
        rows = tuple(
            (named(entry), *(_time(entry, cell) for cell in cells)) for entry in track.entries
        )
        limits = [row for name in LIMITS if any((row := _limit(track, cells, name))[1:])]
        title = f"{track.op}: {track.name}, {words}, median µs"
        tables.append(Table(title, header, (*rows, *limits)))
    return tables


def _heading(track: Track, cell: Cell) -> str:
    row = next(entry.cells[cell] for entry in track.entries if cell in entry.cells)
    return f"{cell[0]} (host)" if row.ranked_by == "host" else cell[0]


def _time(entry: Entry, cell: Cell) -> str:
    row = entry.cells.get(cell)
    if row is None:
        return ""
    if not row.gpu:
        return row.verdict
    return f"{median(row):.1f}{DISTURBED * bool(row.disturbed)}{_alone(row)}"


def _alone(row: Record) -> str:
    """Of a call that is ranked by the GPU's time with backward: its backward by itself."""
    known = "backward" in row.gpu and row.ranked_by == "gpu"
    return f" ({median(row, 'backward'):.1f})" if known else ""


def _limit(track: Track, cells: Sequence[Cell], name: str) -> tuple[str, ...]:
    """The row of one limit, which was measured beside each solution: the median of its medians."""
    return LIMITS[name], *(_median_of_all(track, cell, name) for cell in cells)


def _median_of_all(track: Track, cell: Cell, name: str) -> str:
    rows = [entry.cells[cell] for entry in track.entries if cell in entry.cells]
    timed = [median(row, name) for row in rows if name in row.gpu and row.ranked_by == "gpu"]
    return f"{sorted(timed)[len(timed) // 2]:.1f}" if timed else ""


def comparison(both: Both) -> Table:
    """One row a solution: its score in either run, and which of its cases moved the furthest."""
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
    scores = (_speed(pair.earlier), _speed(pair.later))
    return name, *scores, change, f"{furthest.change:+.1%}", _where(furthest.later)


def _steadiness(moves: Sequence[Move]) -> str:
    """How many moved hardly at all, of those that are long enough to say."""
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
