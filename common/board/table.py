"""A ranked track as rows of text, which the terminal and Markdown draw."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from common.board import disturbances
from common.board.disturbances import DISTURBED
from common.board.ranking import (
    LIMITS,
    Cell,
    Entry,
    Places,
    Score,
    Track,
    limit,
    median,
    rank,
    share,
    sustained_share,
)
from common.records.lines import Counted, Record

OPS = ("rope", "rotate_half", "masked_linear", "masked_ffn")
"""The order of ops on every board; an op that is not listed stands behind them, by name."""
DIRECTION = {"forward": "forward", "backward": "forward + backward (backward alone)"}
TEXT = ("solution", "case", "note", "of its cases", "kernel", "target")
"""The columns of text, which stand at the left; numbers stand at the right."""
NOTE_WIDTH = 60
UNRANKED = "–"
STALE = "†"
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


def tracks_by_op(
    rows: Iterable[Record], places: Places = MappingProxyType({})
) -> list[tuple[str, list[Track]]]:
    """Rank the rows, and return the ops in the order of `OPS`, each with its tracks.

    An op's main track is the first. See `rank` for the places.
    """
    tracks = sorted(rank(rows, places), key=lambda track: place(track.op))
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


def ranking(
    track: Track,
    about: Mapping[str, About],
    timed: bool,
    whole: bool = True,
    whole_notes: bool = True,
) -> Table:
    """Return a row for each solution: place, speed, limit, memory, coverage, exactness, note.

    With `whole`, the case that is furthest from the limit is named; with `whole_notes`, no note is
    cut. A track without a record of memory has no column for it.
    """
    columns: dict[str, Callable[[Entry], str]] = {
        "": lambda entry: str(entry.rank or UNRANKED) if timed else "",
        "solution": lambda entry: marked([entry], about, timed),
    }
    if timed:
        columns |= {"× eager": speed, "worst share of limit": lambda entry: _share(entry, whole)}
    if any(entry.peak_memory is not None for entry in track.entries):
        columns["peak memory"] = lambda entry: size(entry.peak_memory)
    columns |= {
        "covers": lambda entry: f"{entry.covered}/{len(track.cells)}",
        "error / eager's": lambda entry: "" if entry.error is None else f"{entry.error:.2f}",
        "note": lambda entry: _note(entry, about, whole_notes),
    }
    rows = tuple(tuple(text(entry) for text in columns.values()) for entry in track.entries)
    notes = footnotes([track], about, timed)
    return Table(f"{track.op}: {track.name}", tuple(columns), rows, notes)


def _note(entry: Entry, about: Mapping[str, About], whole: bool) -> str:
    known = about[entry.solution].note if entry.solution in about else ""
    return entry.lacks or (known if whole else cut(known))


def size(amount: int | None) -> str:
    """Return bytes in the largest unit that they fill, such as `1.2 GiB`; a dash for None."""
    if amount is None:
        return "–"
    power = min(max(amount, 1).bit_length() - 1, 39) // 10
    return f"{amount / 1024**power:.{min(power, 1)}f} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def named(of: Entry | Record | Counted) -> str:
    """Return the solution's name, in parentheses if it is a peer's."""
    return f"({of.solution})" if of.peer else of.solution


def marked(entries: Sequence[Entry], about: Mapping[str, About], timed: bool) -> str:
    """Return the name of the one solution that the entries are of, with the marks that it needs.

    The footnotes of the table explain the marks.
    """
    old = any(stale(entry, about) for entry in entries)
    disturbed = timed and any(entry.disturbed for entry in entries)
    return named(entries[0]) + STALE * old + DISTURBED * disturbed


def footnotes(tracks: Sequence[Track], about: Mapping[str, About], timed: bool) -> tuple[str, ...]:
    """Return a line for each kind of mark in a table of these tracks."""
    entries = [entry for track in tracks for entry in track.entries]
    disturbed = disturbances.footnotes(entries) if timed else []
    return (*stale_note(entries, about), *disturbed, *_earlier_clock(entries))


def _earlier_clock(entries: Sequence[Entry]) -> list[str]:
    """Return one footnote: how many solutions are not ranked beside those of a later clock."""
    everyone = {entry.solution for entry in entries}
    old = {entry.solution for entry in entries if entry.outdated}
    verb, them = ("are", "them") if len(old) > 1 else ("is", "it")
    share = f"{len(old)} of the {len(everyone)} solutions {verb} not ranked"
    note = f"{share}: an earlier version of the clock measured {them}; run bench again"
    return [note] if old else []


def stale_note(entries: Iterable[Entry], about: Mapping[str, About]) -> list[str]:
    """Return the footnote that explains the mark of stale entries, if one is among them."""
    found = any(stale(entry, about) for entry in entries)
    return [f"{STALE} measured before its source last changed"] * found


def stale(entry: Entry, about: Mapping[str, About]) -> bool:
    """Return whether a row was measured before the solution's source last changed."""
    known = about.get(entry.solution)
    return known is not None and any(r.sources != known.digest for r in entry.cells.values())


def speed(entry: Entry) -> str:
    """Return the score with its interval, such as `6.08 ± 0.02`, or a dash."""
    if entry.score is None:
        return UNRANKED
    return f"{entry.score.value:.2f} ± {half(entry.score):.2f}"


def half(score: Score) -> float:
    """Return the wider half of the score's interval, which need not be symmetric."""
    return max(score.high - score.value, score.value - score.low)


def percent(entry: Entry) -> str:
    """Return the share of the limit in the case that is furthest from it, such as `46%`."""
    if entry.worst_share is None:
        return "–"
    return percentage(share(entry.worst_share))


def percentage(value: float) -> str:
    """Return a share such as `46%`, or `0.03%` where it is that small."""
    return f"{value:.0%}" if value > 0.01 else f"{value:.2%}"


def _share(entry: Entry, whole: bool) -> str:
    if entry.worst_share is None:
        return "–"
    row = entry.worst_share
    steady = sustained_share(row)
    long = f", sustained {steady:.0%}" if steady and whole else ""
    return f"{percent(entry)} of {limit(row)[1]}{long}" + f" ({where(row)})" * whole


def where(row: Record) -> str:
    """Return the case and the direction in words."""
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
        limits = [row for name in LIMITS if any((row := _limit(track, cells, name))[1:])]
        title = f"{track.op}: {track.name}, {words}, median µs"
        tables.append(Table(title, header, (*_by_case(track, cells, _time), *limits)))
    return tables


def memory(track: Track) -> list[Table]:
    """Return a table for each direction whose memory is known: every solution's in every case."""
    tables = []
    for direction in DIRECTION:
        known = {
            cell for entry in track.entries for cell, row in entry.cells.items()
            if cell[1] == direction and row.peak_memory is not None
        }  # fmt: skip
        cells = [cell for cell in track.cells if cell in known]
        if cells:
            words = "forward + backward" if direction == "backward" else direction
            header = ("solution", *(case for case, _ in cells))
            rows = tuple(_by_case(track, cells, lambda _, row: size(row.peak_memory)))
            tables.append(Table(f"{track.op}: {track.name}, {words}, peak memory", header, rows))
    return tables


def _by_case(
    track: Track, cells: Sequence[Cell], text: Callable[[Entry, Record], str]
) -> list[tuple[str, ...]]:
    """Return a line for each solution; a cell is empty where the solution has no row of it."""
    return [
        (named(entry), *(text(entry, row) if (row := track.row(entry, cell)) else ""
                         for cell in cells))
        for entry in track.entries
    ]  # fmt: skip


def _heading(track: Track, cell: Cell) -> str:
    row = next(entry.cells[cell] for entry in track.entries if cell in entry.cells)
    return f"{cell[0]} (host)" if row.ranked_by == "host" else cell[0]


def _time(entry: Entry, row: Record) -> str:
    if not row.gpu:
        return row.verdict
    disturbed = (row.case, row.direction) in entry.disturbed
    return f"{median(row):.1f}{DISTURBED * disturbed}{_alone(row)}"


def _alone(row: Record) -> str:
    """Return the time of backward by itself, in parentheses, where GPU time ranks the row."""
    known = "backward" in row.gpu and row.ranked_by == "gpu"
    return f" ({median(row, 'backward'):.1f})" if known else ""


def _limit(track: Track, cells: Sequence[Cell], name: str) -> tuple[str, ...]:
    """Return the row of one limit: the median of the medians taken beside each solution."""
    return LIMITS[name], *(_median_of_all(track, cell, name) for cell in cells)


def _median_of_all(track: Track, cell: Cell, name: str) -> str:
    rows = filter(None, [track.row(entry, cell) for entry in track.entries])
    timed = [median(row, name) for row in rows if name in row.gpu and row.ranked_by == "gpu"]
    return f"{sorted(timed)[len(timed) // 2]:.1f}" if timed else ""
