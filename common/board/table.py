"""A ranked track as rows of text, which the terminal and Markdown draw."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from common.board.comparison import SHORT, STEADY, Both, Move, Pair
from common.board.ranking import (
    LIMITS,
    Cell,
    Entry,
    Track,
    limit,
    median,
    rank,
    share,
    sustained_share,
)
from common.records.lines import Record

OPS = ("rope", "rotate_half", "masked_linear", "masked_ffn")
"""The order of ops on every board; an op that is not listed stands behind them, by name."""
DIRECTION = {"forward": "forward", "backward": "forward + backward (backward alone)"}
NOTE_WIDTH = 60
STALE = "†"
DISTURBED = "‡"
EDITED = "*"
MARKS = STALE + DISTURBED + EDITED


@dataclass(frozen=True)
class About:
    """The facts of a solution that no record holds; they are read as text, and never run."""

    note: str
    digest: str


@dataclass(frozen=True)
class Table:
    """A title, a header, rows of text and the footnotes below them."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    footnotes: tuple[str, ...] = ()


def place(op: str) -> tuple[int, str]:
    """Return a sort key that puts ops in the order of `OPS`."""
    return (OPS.index(op) if op in OPS else len(OPS), op)


def tracks_by_op(rows: Iterable[Record]) -> list[tuple[str, list[Track]]]:
    """Rank the rows, and return the ops in the order of `OPS`, each with its tracks.

    An op's main track is the first.
    """
    tracks = sorted(rank(rows), key=lambda track: place(track.op))
    return [(op, list(found)) for op, found in itertools.groupby(tracks, lambda track: track.op)]


def cut(note: str) -> str:
    """Return the note with its tail replaced by an ellipsis where it exceeds `NOTE_WIDTH`."""
    if len(note) <= NOTE_WIDTH:
        return note
    head = note[: NOTE_WIDTH - 1]
    if note[NOTE_WIDTH - 1] != " ":  # do not end amid a word
        head = head.rpartition(" ")[0] or head
    return head.rstrip(" ,;:.") + "…"


# --- rankings -------------------------------------------------------------------------------------


def ranking(track: Track, about: Mapping[str, About], timed: bool, whole: bool = True) -> Table:
    """Return a row for each solution: place, speed, share of the limit, exactness, coverage.

    With `whole`, the case that is furthest from the limit is named, and no note is cut.
    """
    header = ["", "solution", "covers", "error / eager's", "note"]
    if timed:
        header[2:2] = ["× eager", "worst share of limit"]
    rows = tuple(tuple(_ranked(entry, track, about, timed, whole)) for entry in track.entries)
    notes = footnotes([track], about, timed)
    return Table(f"{track.op}: {track.name}", tuple(header), rows, notes)


def _ranked(
    entry: Entry, track: Track, about: Mapping[str, About], timed: bool, whole: bool
) -> list[str]:
    covers = f"{entry.covered}/{len(track.cells)}"
    error = "" if entry.error is None else f"{entry.error:.2f}"
    known = about[entry.solution].note if entry.solution in about else ""
    note = entry.lacks or (known if whole else cut(known))
    name = marked([entry], about, timed)
    if not timed:
        return ["", name, covers, error, note]
    return [str(entry.rank or "–"), name, _speed(entry), _share(entry, whole), covers, error, note]


def named(of: Entry | Record) -> str:
    """Return the solution's name, in parentheses if it is a peer's."""
    return f"({of.solution})" if of.peer else of.solution


def marked(entries: Sequence[Entry], about: Mapping[str, About], timed: bool) -> str:
    """Return the name of the one solution that the entries are of, with the marks that it needs.

    The footnotes of the table explain the marks.
    """
    stale = any(_stale(entry, about) for entry in entries)
    disturbed = timed and any(entry.disturbed for entry in entries)
    return named(entries[0]) + STALE * stale + DISTURBED * disturbed


def footnotes(tracks: Sequence[Track], about: Mapping[str, About], timed: bool) -> tuple[str, ...]:
    """Return a line for each kind of mark in a table of these tracks."""
    entries = [entry for track in tracks for entry in track.entries]
    stale = any(_stale(entry, about) for entry in entries)
    notes = [f"{STALE} measured before its source last changed"] * stale
    return (*notes, *(_disturbances(entries) if timed else []))


def _stale(entry: Entry, about: Mapping[str, About]) -> bool:
    known = about.get(entry.solution)
    return known is not None and any(r.sources != known.digest for r in entry.cells.values())


def _disturbances(entries: Sequence[Entry]) -> list[str]:
    """Return one footnote: the kinds of disturbance, and the number of rows that had any."""
    reasons = [words for entry in entries for _, words in entry.disturbed]
    if not reasons:
        return []
    kinds = ", ".join(sorted({kind for words in reasons for kind in words.split(", ")}))
    timed = sum(bool(row.gpu) for entry in entries for row in entry.cells.values())
    return [f"{DISTURBED} measured in part on a throttled, shared or disturbed GPU: {kinds}"
            f" ({len(reasons)} of the table's {timed} timed rows)"]  # fmt: skip


def _speed(entry: Entry) -> str:
    if entry.score is None:
        return "–"
    score = entry.score
    half = max(score.high - score.value, score.value - score.low)
    return f"{score.value:.2f} ± {half:.2f}"


def percent(entry: Entry) -> str:
    """Return the share of the limit in the case that is furthest from it, such as `46%`."""
    if entry.worst_share is None:
        return "–"
    value = share(entry.worst_share)
    return f"{value:.0%}" if value > 0.01 else f"{value:.2%}"


def _share(entry: Entry, where: bool) -> str:
    if entry.worst_share is None:
        return "–"
    row = entry.worst_share
    steady = sustained_share(row)
    long = f", sustained {steady:.0%}" if steady and where else ""
    return f"{percent(entry)} of {limit(row)[1]}{long}" + f" ({_where(row)})" * where


def _where(row: Record) -> str:
    return row.case + ", with backward" * (row.direction == "backward")


# --- times ----------------------------------------------------------------------------------------


def times(track: Track) -> list[Table]:
    """Return a table for each direction: every solution's median microseconds in every case."""
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
    disturbed = any(other is row for other, _ in entry.disturbed)
    return f"{median(row):.1f}{DISTURBED * disturbed}{_alone(row)}"


def _alone(row: Record) -> str:
    """Return the time of backward by itself, in parentheses, where GPU time ranks the row."""
    known = "backward" in row.gpu and row.ranked_by == "gpu"
    return f" ({median(row, 'backward'):.1f})" if known else ""


def _limit(track: Track, cells: Sequence[Cell], name: str) -> tuple[str, ...]:
    """Return the row of one limit: the median of the medians taken beside each solution."""
    return LIMITS[name], *(_median_of_all(track, cell, name) for cell in cells)


def _median_of_all(track: Track, cell: Cell, name: str) -> str:
    rows = [entry.cells[cell] for entry in track.entries if cell in entry.cells]
    timed = [median(row, name) for row in rows if name in row.gpu and row.ranked_by == "gpu"]
    return f"{sorted(timed)[len(timed) // 2]:.1f}" if timed else ""


# --- two runs -------------------------------------------------------------------------------------


def comparison(both: Both) -> Table:
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
    scores = (_speed(pair.earlier), _speed(pair.later))
    return name, *scores, change, f"{furthest.change:+.1%}", _where(furthest.later)


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
