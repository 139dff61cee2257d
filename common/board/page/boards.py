"""The rankings on the page: each track of each device, and each choice of the track's cells."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from common.board import modelled
from common.board.columns import COLUMNS, Column, Standing
from common.board.devices import Device, Section, devices
from common.board.page.rendering import link
from common.board.ranking import Track, rank
from common.board.table import About
from common.records.lines import Record
from common.records.runs import Results

Choice = tuple[str, str]
"""A direction and a case; an empty text stands for all of them."""
ALL: Choice = ("", "")


@dataclass(frozen=True)
class Board:
    """A track of a device."""

    device: Device
    section: Section
    track: Track
    about: Mapping[str, About]

    @cached_property
    def choices(self) -> dict[Choice, dict[str, Standing]]:
        """The standings of each choice that has a row, the best first, by the solution's name.

        >>> list(board.choices)
        [('', ''), ('', 'c1'), ('forward', ''), ('forward', 'c1')]
        """
        choices: dict[Choice, list[Record]] = {
            (direction, case): []
            for direction in ("", *self.track.directions)
            for case in ("", *dict(self.track.cells))
        }
        for row in self.section.rows:
            if row.track == self.track.name:
                for choice in itertools.product(("", row.direction), ("", row.case)):
                    choices[choice].append(row)
        return {
            choice: {
                entry.solution: Standing(track, entry, self.about, self.device.timed)
                for track in rank(rows)
                for entry in track.entries
            }
            for choice, rows in choices.items()
            if rows
        }

    def columns(self, single: bool) -> list[Column]:
        """Return the columns of a ranking by a single case and direction, or by several."""
        unfit = "several" if single else "one"
        return [
            column
            for column in COLUMNS
            if column.style and column.cases != unfit and column.known(self.track)
            if self.device.timed or not column.timed
        ]

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the address of the board's view."""
        track = self.track
        return {"view": "board", "device": self.device.slug, "op": track.op, "track": track.name}

    @property
    def address(self) -> str:
        """The address of the board's view, as `page.js` makes it of the fields."""
        return " ".join(self.fields.values())

    def link(self, choice: Choice = ALL, row: str = "") -> str:
        """Return the link to the board, to a choice of its cells, or to a solution's row."""
        return link(**self.fields, direction=choice[0], case=choice[1], row=row)

    def tabs(self, boards: Sequence[Board]) -> dict[str, dict[str, Board]]:
        """Return the board behind each tab: the one with the most in common with this one."""

        def nearest(label: str) -> Board:
            return min(
                (board for board in boards if label_of(board) == label),
                key=lambda b: (b.device is not self.device, b.track.name != self.track.name),
            )

        tabs = {}
        for kind, label_of in TABS.items():
            tabs[kind] = {label: nearest(label) for label in dict.fromkeys(map(label_of, boards))}
            boards = [board for board in boards if label_of(board) == label_of(self)]
        return tabs


TABS: Mapping[str, Callable[[Board], str]] = {
    "Op": lambda board: board.track.op,
    "Device": lambda board: board.device.name,
    "Track": lambda board: board.track.name,
}
"""The label of a board's tab in each row of tabs."""


def devices_of(recorded: Iterable[Results], about: Mapping[str, About]) -> list[Device]:
    """Return the devices in the order of boards; modelled times take the place of missing ones."""
    timed = [modelled.with_modelled_times(results) for results in recorded]
    gpus = {results.path: gpu for results, gpu in timed}
    return [
        replace(device, modelled=gpus[device.results.path])
        for device in devices([results for results, _ in timed], about)
    ]
