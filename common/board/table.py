"""A ranked track as rows of text, which the terminal and Markdown only draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from common.board.ranking import Cell, Entry, Track, median

DIRECTION = {"forward": "forward", "backward": "forward + backward"}
STALE = "†"


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
        header[2:2] = ["× eager", "worst share of copy"]
    rows = tuple(tuple(_ranked(entry, track, about, timed, where)) for entry in track.entries)
    stale = any(_stale(entry, about) for entry in track.entries)
    footnote = f"{STALE} measured before its source last changed"
    return Table(f"{track.op}: {track.name}", tuple(header), rows, (footnote,) if stale else ())


def _ranked(
    entry: Entry, track: Track, about: Mapping[str, About], timed: bool, where: bool
) -> list[str]:
    known = about.get(entry.solution)
    name = f"({entry.solution})" if entry.peer else entry.solution
    name += STALE if _stale(entry, about) else ""
    covers = f"{entry.covered}/{len(track.cells)}"
    error = "" if entry.error is None else f"{entry.error:.2f}"
    note = entry.lacks or (known.note if known else "")
    if not timed:
        return ["", name, covers, error, note]
    share = _share(entry, where)
    return [str(entry.rank or "–"), name, _speed(entry), share, covers, error, note]


def _stale(entry: Entry, about: Mapping[str, About]) -> bool:
    known = about.get(entry.solution)
    return known is not None and any(r.sources != known.digest for r in entry.cells.values())


def _speed(entry: Entry) -> str:
    if entry.score is None:
        return "–"
    score = entry.score
    half = max(score.high - score.value, score.value - score.low)
    return f"{score.value:.2f} ± {half:.2f}"


def _share(entry: Entry, where: bool) -> str:
    if entry.worst_share is None:
        return "–"
    value, (case, direction) = entry.worst_share
    percent = f"{value:.0%}" if value > 0.01 else f"{value:.2%}"
    named = f" ({case}{', with backward' * (direction == 'backward')})"
    return percent + named * where


def times(track: Track) -> list[Table]:
    """For each direction the median microseconds of every solution in every case."""
    tables = []
    for direction, words in DIRECTION.items():
        cells = [cell for cell in track.cells if cell[1] == direction]
        header = ("solution", *(_heading(track, cell) for cell in cells))
        rows = tuple(
            (entry.solution, *(_time(entry, cell) for cell in cells)) for entry in track.entries
        )
        copies = ("copy of the same bytes", *(_copy(track, cell) for cell in cells))
        title = f"{track.op}: {track.name}, {words}, median µs"
        tables.append(Table(title, header, (*rows, copies)))
    return tables


def _heading(track: Track, cell: Cell) -> str:
    row = next(entry.cells[cell] for entry in track.entries if cell in entry.cells)
    return f"{cell[0]} (host)" if row.clock == "host" else cell[0]


def _time(entry: Entry, cell: Cell) -> str:
    row = entry.cells.get(cell)
    if row is None:
        return ""
    return f"{median(row):.1f}" if row.gpu else row.verdict


def _copy(track: Track, cell: Cell) -> str:
    rows = [entry.cells[cell] for entry in track.entries if cell in entry.cells]
    timed = [median(row, "copy") for row in rows if row.gpu and row.clock == "gpu"]
    return f"{sorted(timed)[len(timed) // 2]:.1f}" if timed else ""
