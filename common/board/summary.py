"""The README's short tables: one for each op, its tracks side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common.board.ranking import Entry, Track
from common.board.table import UNRANKED, About, Table, cut, footnotes, marked, percent


def summary(tracks: Sequence[Track], about: Mapping[str, About]) -> Table:
    """Return a row for each solution of one op, with a speed for each track.

    The first track gives the place, the order and the share of the limit. A solution without a
    speed in a track does not cover it whole; a solution without any says what it lacks.

    Args:
        tracks: all tracks of one op, the main one first.
        about: the notes; a solution that is not in it has none.
    """
    main, *others = (f"{track.name} × eager" for track in tracks)
    rows = tuple(_row(name, tracks, about) for name in _solutions(tracks))
    notes = footnotes(tracks, about, timed=True)
    return Table(tracks[0].op, ("", "solution", main, "of limit", *others, "note"), rows, notes)


def _solutions(tracks: Sequence[Track]) -> list[str]:
    """Return the names by place; of those without one, the ones ranked in another track first."""
    ranked = [entry.solution for track in tracks for entry in track.entries if entry.rank]
    others = [entry.solution for track in tracks for entry in track.entries]
    return list(dict.fromkeys([*ranked, *others]))


def _row(name: str, tracks: Sequence[Track], about: Mapping[str, About]) -> tuple[str, ...]:
    found = [{entry.solution: entry for entry in track.entries}.get(name) for track in tracks]
    entries = [entry for entry in found if entry]
    main, *others = found
    place, share = UNRANKED, UNRANKED
    if main and main.rank:
        place, share = str(main.rank), percent(main)
    speeds = (_speed(main), share, *map(_speed, others))
    return place, marked(entries, about, timed=True), *speeds, cut(_note(entries, about))


def _speed(entry: Entry | None) -> str:
    return f"{entry.score.value:.2f}" if entry and entry.score else UNRANKED


def _note(entries: Sequence[Entry], about: Mapping[str, About]) -> str:
    """Return the solution's own note, or what it lacks if no track ranks it."""
    lacking = [entry.lacks for entry in entries if entry.lacks]
    if lacking and not any(entry.rank for entry in entries):
        return lacking[0]
    known = about.get(entries[0].solution)
    return known.note if known else ""
