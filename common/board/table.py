"""Tables of text for the terminal, Markdown and the page; the texts and marks in their cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from common.board.ranking import CLOCKS, Entry, Score, Track
from common.errors import NOTES
from common.records.lines import Counted, Record

TEXT = ("solution", "kernel", "first in", "note", "op", "column", "first", "second", "third")
"""The columns of text, which are left-aligned; numbers are right-aligned."""
UNRANKED = "–"
STALE = "†"
DISTURBED = "‡"
OUTDATED = f"{STALE} measured before its source last changed"
TUNED, AS_INSTALLED = "tuned by its own search", "as installed, without a search"


@dataclass(frozen=True)
class Table:
    """A title, a header, rows of text and the footnotes below them."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    footnotes: tuple[str, ...] = ()
    owners: tuple[Entry | Record | Counted, ...] = ()
    """The solution of each row, in the tables of a terminal."""


# --- the texts of cells ---------------------------------------------------------------------------


def named(of: Entry | Record | Counted) -> str:
    """Return the solution's name, with parentheses around a peer's name."""
    return f"({of.solution})" if of.peer else of.solution


def marked(entry: Entry) -> str:
    """Return the solution's name with the marks that the footnotes of the table explain."""
    return named(entry) + STALE * entry.stale + DISTURBED * bool(entry.disturbed)


def figure(score: Score | None, interval: bool = True) -> str:
    """Return the figure that ranks, with its interval: `97.2% ± 0.3`, or a multiple."""
    if not score:
        return UNRANKED
    main, share = score.main, score.of_limit
    value = percentage(main.value) if share else f"{main.value:.2f}×"
    if not interval or not main.interval:
        return value
    half = max(main.high - main.value, main.value - main.low)  # the wider one
    return f"{value} ± {half * (100 if share else 1):.{1 if share else 2}f}"


def percentage(value: float) -> str:
    """Return a share such as `46.2%`; up to 1 % with two decimals, such as `0.03%`."""
    return f"{value:.1%}" if value > 0.01 else f"{value:.2%}"


# --- the footnotes of marks -----------------------------------------------------------------------


def footnotes(tracks: Iterable[Track]) -> Iterator[str]:
    """Yield a footnote for each kind of mark and of note in a table of these tracks."""
    by_name = {entry.solution: entry for track in tracks for entry in track.entries}
    entries = by_name.values()
    if any(entry.stale for entry in entries):
        yield OUTDATED
    for how in (TUNED, AS_INSTALLED):
        if names := [named(entry) for entry in entries if how in entry.about.note]:
            yield f"{how}: {', '.join(names)}"
    timed = [row for entry in entries for row in entry.cells.values() if row.gpu]
    for clock, words in CLOCKS.items():
        if count := sum(clock in row.disturbed for row in timed):
            rows = f"{count} of the table's {len(timed)} timed rows"
            yield f"{DISTURBED} measured in part on a disturbed {words}: slow probes ({rows})"
    noted: dict[str, list[str]] = {}
    for entry in entries:
        kinds = ({NOTES[note.kind]: None for note in row.notes} for row in entry.cells.values())
        for kind, count in Counter(chain.from_iterable(kinds)).items():
            share = f"{named(entry)} ({count} of {len(entry.cells)} rows)"
            noted.setdefault(kind, []).append(share)
    for kind, shares in noted.items():
        yield f"{kind}: {', '.join(shares)}"
