"""Tables as rows of text for the terminal, Markdown and the page; and the texts of their cells."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from common import interfaces
from common.board.ranking import (
    LIMITS,
    Cell,
    Entry,
    Estimate,
    Track,
    median,
    rank,
    share,
)
from common.records.lines import Counted, Influences, Record

OPS = tuple(interfaces.known())
"""The order of ops on every board, as their files state it; an op without a file comes last."""
DIRECTION = {"forward": "forward", "backward": "forward + backward (backward alone)"}
TEXT = (
    "solution", "case", "note", "of its cases", "kernel", "target", "op", "track", "first",
    "second", "third",
)  # fmt: skip
"""The columns of text, which are left-aligned; numbers are right-aligned."""
NOTE_WIDTH = 60
UNRANKED = "–"
STALE = "†"
DISTURBED = "‡"
EDITED = "*"
MEASURED: Mapping[str, str] = {
    "gpu": "throttled, shared or disturbed GPU",
    "host": "disturbed host",
}
"""The name of a disturbed machine in a footnote, by clock."""


@dataclass(frozen=True)
class About:
    """The facts of a solution that come from its source, which is read as text and not run."""

    note: str
    digest: str


@dataclass(frozen=True)
class Table:
    """A title, a header, rows of text and the footnotes below them."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    footnotes: tuple[str, ...] = ()
    owners: tuple[Entry | Record | Counted, ...] = ()
    """The solution of each row, in the tables of a terminal."""


def op_order(op: str) -> tuple[int, str]:
    """Return a sort key that puts ops in the order of `OPS`."""
    return (OPS.index(op) if op in OPS else len(OPS), op)


def tracks_by_op(rows: Iterable[Record]) -> list[tuple[str, list[Track]]]:
    """Rank the rows, and return the ops in the order of `OPS` with their tracks.

    An op's main track is the first.
    """
    tracks = sorted(rank(rows), key=lambda track: op_order(track.op))
    return [(op, list(of_op)) for op, of_op in itertools.groupby(tracks, lambda track: track.op)]


def cut(note: str) -> str:
    """Return the note, cut with an ellipsis if it is longer than `NOTE_WIDTH`."""
    if len(note) <= NOTE_WIDTH:
        return note
    head = note[: NOTE_WIDTH - 1]
    if note[NOTE_WIDTH - 1] != " ":  # do not split a word
        head = head.rpartition(" ")[0] or head
    return head.rstrip(" ,;:.") + "…"


# --- the texts of cells ---------------------------------------------------------------------------


def size(amount: int | None) -> str:
    """Return bytes in the largest unit of at least 1, such as `1.2 GiB`; a dash for None."""
    if amount is None:
        return "–"
    power = min(max(amount, 1).bit_length() - 1, 39) // 10
    return f"{amount / 1024**power:.{min(power, 1)}f} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def named(of: Entry | Record | Counted) -> str:
    """Return the solution's name, with parentheses around a peer's name.

    The name of an entry with modelled times on a board with measured times says so.
    """
    name = of.solution + " modelled" * (isinstance(of, Entry) and of.modelled)
    return f"({name})" if of.peer else name


def marked(entries: Sequence[Entry], about: Mapping[str, About], timed: bool) -> str:
    """Return the name and the marks of the solution to which all entries belong.

    The footnotes of the table explain the marks.
    """
    old = any(stale(entry, about) for entry in entries)
    disturbed = timed and any(entry.disturbed for entry in entries)
    return named(entries[0]) + STALE * old + DISTURBED * disturbed


def speed(entry: Entry) -> str:
    """Return the score with its interval, such as `6.08 ± 0.02`, or a dash."""
    if entry.score is None:
        return UNRANKED
    score = entry.score
    # a modelled score has no interval
    return f"{score.value:.2f}" + f" ± {half_interval(score):.2f}" * (score.high > score.low)


def half_interval(score: Estimate) -> float:
    """Return the wider half of the score's interval, which may be asymmetric."""
    return max(score.high - score.value, score.value - score.low)


def percent(entry: Entry) -> str:
    """Return the smallest share of the limit over the cases, such as `46%`."""
    if entry.worst_share is None:
        return "–"
    return percentage(share(entry.worst_share))


def percentage(value: float) -> str:
    """Return a share such as `46%`; up to 1 % with two decimals, such as `0.03%`."""
    return f"{value:.0%}" if value > 0.01 else f"{value:.2%}"


def where(row: Record) -> str:
    """Return the case and the direction in words."""
    return row.case + ", with backward" * (row.direction == "backward")


# --- marks and their footnotes --------------------------------------------------------------------


def footnotes(tracks: Sequence[Track], about: Mapping[str, About], timed: bool) -> tuple[str, ...]:
    """Return a footnote for each kind of mark and of note in a table of these tracks."""
    entries = [entry for track in tracks for entry in track.entries]
    disturbed = _disturbances(entries) if timed else []
    return (*stale_note(entries, about), *disturbed, *_earlier_clock(entries), *_noted(entries))


def _noted(entries: Iterable[Entry]) -> list[str]:
    """Return a footnote for each kind of note, with the solutions and the numbers of their rows."""
    solutions: dict[str, list[str]] = {}
    for entry in entries:
        for kind, count in entry.notes.items():
            share = f"{named(entry)} ({count} of {len(entry.cells)} rows)"
            solutions.setdefault(kind, []).append(share)
    return [f"{kind}: {', '.join(shares)}" for kind, shares in solutions.items()]


def _earlier_clock(entries: Sequence[Entry]) -> list[str]:
    """Return a footnote with the number of solutions that only an earlier clock measured."""
    solutions = {entry.solution for entry in entries}
    old = {entry.solution for entry in entries if entry.outdated}
    verb, them = ("are", "them") if len(old) > 1 else ("is", "it")
    share = f"{len(old)} of the {len(solutions)} solutions {verb} not ranked"
    note = f"{share}: an earlier version of the clock measured {them}; run bench again"
    return [note] if old else []


def stale_note(entries: Iterable[Entry], about: Mapping[str, About]) -> list[str]:
    """Return the footnote that explains the mark of stale entries, if an entry is stale."""
    any_stale = any(stale(entry, about) for entry in entries)
    return [f"{STALE} measured before its source last changed"] * any_stale


def stale(entry: Entry, about: Mapping[str, About]) -> bool:
    """Return whether a row was measured before the solution's source last changed."""
    known = about.get(entry.solution)
    return known is not None and any(r.sources != known.digest for r in entry.cells.values())


def by_clock(influences: Iterable[Influences]) -> Influences:
    """Return the distinct influences on several rows, by the clock of the disturbed times."""
    rows = list(influences)
    merged = {
        clock: [reason for row in rows for reason in row.get(clock, ())] for clock in MEASURED
    }
    return {clock: list(dict.fromkeys(reasons)) for clock, reasons in merged.items() if reasons}


def _disturbances(entries: Sequence[Entry]) -> list[str]:
    """Return a footnote for each clock: the influences, and the number of disturbed rows."""
    rows = [influences for entry in entries for influences in entry.disturbed.values()]
    timed = sum(bool(row.gpu) for entry in entries for row in entry.cells.values())
    return [
        f"{DISTURBED} measured in part on a {MEASURED[clock]}: {', '.join(sorted(reasons))}"
        f" ({sum(clock in row for row in rows)} of the table's {timed} timed rows)"
        for clock, reasons in by_clock(rows).items()
    ]


# --- times and memory -----------------------------------------------------------------------------


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
    """Return a table for each direction: every solution's peak memory in every case.

    A direction without a known peak has no table.
    """
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
    """Return a line for each solution; the text of a cell without a row is empty."""
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
    alone = "backward" in row.gpu and row.ranked_by == "gpu"
    by_itself = f" ({median(row, 'backward'):.1f})" if alone else ""
    return f"{median(row):.1f}{DISTURBED * disturbed}{by_itself}"


def _limit(track: Track, cells: Sequence[Cell], name: str) -> tuple[str, ...]:
    """Return a limit's line: in each cell the median of the limit's medians in all entries."""
    texts = [LIMITS[name]]
    for cell in cells:
        rows = filter(None, [track.row(entry, cell) for entry in track.entries])
        timed = [median(row, name) for row in rows if name in row.gpu and row.ranked_by == "gpu"]
        texts.append(f"{sorted(timed)[len(timed) // 2]:.1f}" if timed else "")
    return tuple(texts)


# --- the parts of a small call --------------------------------------------------------------------

PARTS = {
    "forward: host": ("forward", "host", "solution"),
    "no_grad: host": ("forward", "host", "no_grad"),
    "forward: GPU": ("forward", "gpu", "solution"),
    "CUDA graph: GPU": ("forward", "gpu", "graph"),
    "forward: loop": ("forward", "sustained", "solution"),
    "with backward: host": ("backward", "host", "solution"),
    "with backward: GPU": ("backward", "gpu", "solution"),
    "with backward: loop": ("backward", "sustained", "solution"),
    "backward alone: GPU": ("backward", "gpu", "backward"),
}
"""Each column's direction, clock and time; `sustained` stands for the times of a loop."""


def parts(rows: Sequence[Record]) -> list[Table]:
    """Return a table for each small case of the op to which all rows belong.

    Launching dominates the small cases: the cases ranked by host time, or else the smallest case.
    The solution with the least host time is the first.
    """
    clock = max((row.clock for row in rows if row.gpu), default=0)
    timed = [row for row in rows if row.gpu and row.clock == clock]
    return [_parts_of([row for row in timed if row.case == case]) for case in _small(timed)]


def _small(timed: Sequence[Record]) -> list[str]:
    hosted = dict.fromkeys(row.case for row in timed if row.ranked_by == "host")
    smallest = sorted(timed, key=lambda row: row.bytes)[:1]
    return list(hosted) or [row.case for row in smallest]


def _parts_of(of_case: Sequence[Record]) -> Table:
    by_name: dict[tuple[str, str], Record] = {(named(row), row.direction): row for row in of_case}
    ordered = sorted(of_case, key=_forward_host_time)
    rows = tuple(
        (name, *(_part(by_name.get((name, direction)), clock, time)
                 for direction, clock, time in PARTS.values()))
        for name in dict.fromkeys(map(named, ordered))
    )  # fmt: skip
    named_notes = ((note.partition(": ")[0], named(row)) for row in ordered for note in row.notes)
    notes = tuple(f"{note}: {name}" for note, name in named_notes)
    return Table(f"{of_case[0].case}, median µs", ("solution", *PARTS), rows, notes)


def _forward_host_time(row: Record) -> tuple[bool, float]:
    """Return a sort key: forward before backward, then by host time."""
    return row.direction != "forward", row.host["solution"].median if row.host else math.inf


def _part(row: Record | None, clock: str, time: str) -> str:
    if row is None:
        return ""
    if clock == "sustained":
        microseconds = row.sustained.get(time)
    else:
        summary = (row.host if clock == "host" else row.gpu).get(time)
        microseconds = summary.median if summary else None
    return "–" if microseconds is None else f"{microseconds:.1f}"
