"""The boards as data for scripts: one row for each device, track and solution; pure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from common.board.devices import Device
from common.board.ranking import Entry, Track, share
from common.board.table import About, stale
from common.solutions import is_among

FIELDS = (
    "device", "op", "track", "place", "solution", "peer", "times_eager", "low", "high",
    "share_of_limit", "limited_case", "limited_direction", "peak_memory", "covered", "cells",
    "error", "stale", "disturbed", "note", "lacks",
)  # fmt: skip
"""The names of a row's fields.

`times_eager` has its 95 % interval in `low` and `high`; memory is in bytes, and `error` in units of
eager's own. None where nothing is known.
"""


def rows(
    found: Iterable[Device], about: Mapping[str, About], only: str = ""
) -> Iterator[dict[str, Any]]:
    """Yield the rows in the order of the boards, of one handle or solution or of all."""
    for device in found:
        for track in device.tracks.values():
            for entry in track.entries:
                if not only or is_among(entry.solution, only):
                    values = _values(device, track, entry, about)
                    yield dict(zip(FIELDS, values, strict=True))


def as_json(found: Iterable[Mapping[str, Any]]) -> str:
    """Return a list of objects."""
    return json.dumps(list(found), indent=1, ensure_ascii=False) + "\n"


def as_csv(found: Iterable[Mapping[str, Any]]) -> str:
    """Return a line of names and a line for each row."""
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue()


def _values(
    device: Device, track: Track, entry: Entry, about: Mapping[str, About]
) -> tuple[Any, ...]:
    score, worst, known = entry.score, entry.worst_share, about.get(entry.solution)
    return (
        device.name,
        track.op,
        track.name,
        entry.rank,
        entry.solution,
        entry.peer,
        score and score.value,
        score and score.low,
        score and score.high,
        worst and share(worst),
        worst and worst.case,
        worst and worst.direction,
        entry.peak_memory,
        entry.covered,
        len(track.cells),
        entry.error,
        stale(entry, about),
        bool(entry.disturbed),
        known.note if known else "",
        entry.lacks,
    )
