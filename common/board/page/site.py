"""The page: every view, rendered from its template, in one HTML file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from markupsafe import Markup

from common import paths
from common.board import overview
from common.board.columns import COLUMNS, Column
from common.board.devices import Device
from common.board.page import rendering
from common.board.page.rendering import draw, link
from common.board.ranking import CLOCKS, Quantity, Track, op_order
from common.records.lines import Estimate, Record
from common.solutions import Solution, source_of

HERE = Path(__file__).parent
STYLES = ("vendor/uplot/uPlot.min.css", "assets/page.css")
SCRIPTS = (
    "vendor/uplot/uPlot.iife.min.js", "vendor/sortable/sortable.min.js",
    "assets/charts.js", "assets/page.js",
)  # fmt: skip
WORDS = "assets/korean.json"
"""The file with the Korean translation of each English text of the page."""
PLACES = ("quantity", "number")
"""The styles of the columns of a solution's places."""
SLOW = 100
"""How many times as long as the fastest a solution takes that a chart leaves out."""


class Site:
    """The views of the page."""

    def __init__(self, devices: Sequence[Device], solutions: Iterable[Solution]) -> None:
        """Take the ranked devices, and the solutions in this tree."""
        self.devices = devices
        self.boards = [
            Board(device, track) for device in devices for track in device.tracks.values()
        ]
        measured = {entry.solution for board in self.boards for entry in board.track.entries}
        self.solutions = sorted(
            (each for each in solutions if not each.peer or each.name in measured),
            key=lambda each: (op_order(each.op), each.peer, each.name),
        )
        self.hues = {each.name: hue for hue, each in enumerate(self.solutions)}
        """The index of each solution's hue: its place among all solutions."""
        first = {board.track.op: board for board in reversed(self.boards)}
        self.mains = [first[op] for op in sorted(first, key=op_order)]
        """The main track of each op on the first device that has the op."""
        self.texts: dict[str, int] = {}
        """The number of each text that several views show: charts and files."""
        self.times = {board.address: self._times(board) for board in self.boards}

    def write(self, folder: Path) -> Path:
        """Write the page into a folder, and return the page's path."""
        script, style = (
            "\n".join((HERE / path).read_text() for path in part) for part in (SCRIPTS, STYLES)
        )
        views = dict(self.views())
        words = json.loads((HERE / WORDS).read_text())
        page = draw(
            "page.html",
            script=Markup(script),
            style=Markup(style),
            packed=rendering.packed(
                {"ko": words, "views": views, "texts": list(self.texts), "hues": self.hues}
            ),
            compared=link(view="compare", **dict(zip(("one", "other"), self.hues, strict=False))),
        )
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "index.html"
        paths.replace(path, page.encode())
        return path

    def views(self) -> Iterator[tuple[str, str]]:
        """Yield the address and the HTML of each view."""
        shown = [(b, panel) for b in self.mains for panel in overview.panels([b.track])]
        first = draw("overview.html", panels=shown)
        yield "missing", draw("missing.html")
        yield "overview", first
        yield "", first if self.boards else draw("missing.html")
        by_op = groupby(self.solutions, lambda each: each.op)
        names = {op: [each.name for each in of_op] for op, of_op in by_op}
        yield "compare", draw("compare.html", names=names)
        for board in self.boards:
            html = self._board(board)
            yield board.address, html
            if board is self.mains[0]:
                yield "board", html
        for solution in self.solutions:
            yield f"solution {solution.name}", self._solution(solution)

    def _number(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))

    def _times(self, board: Board) -> dict[Quantity, tuple[int, dict[str, Any]]]:
        """Return the chart of times by each quantity, with the number of its text."""
        quantities = [each for each in board.track.quantities if each.by in CLOCKS]
        charts = {each: times(board.track, each) for each in quantities}
        return {
            quantity: (self._number(msgspec.json.encode(chart).decode()), chart)
            for quantity, chart in charts.items()
        }

    def _board(self, board: Board) -> str:
        device, track = board.device, board.track
        return draw(
            "board.html",
            columns_of=columns,
            board=board,
            tabs=board.tabs(self.boards),
            disturbed={clock for entry in track.entries for clock in entry.disturbed},
            times=self.times[board.address],
            heat=Markup(overview.heat_map(track, device)),
        )

    def _solution(self, solution: Solution) -> str:
        name, folder = solution.name, solution.path.parent
        standings = {
            board: entry for board in self.boards if (entry := board.choices[""].entry(name))
        }
        return draw(
            "solution.html",
            columns_of=columns,
            solution=solution,
            site=self,
            standings=standings,
            stale={b.device.name: None for b, entry in standings.items() if entry.stale},
            places=[
                column
                for column in COLUMNS
                if column.style in PLACES and any(column.known(b.track) for b in standings)
            ],
            files={
                path.relative_to(folder).as_posix(): self._number(rendering.lines(path))
                for path in (*solution.files, folder / "README.md")
                if source_of(path).is_file()
            },
        )


# --- one track of one device ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Board:
    """A track of a device."""

    device: Device
    track: Track

    @cached_property
    def choices(self) -> dict[str, Track]:
        """The ranking of each case, and of all cases as the case "".

        >>> list(board.choices)
        ['', 'c1', 'c2']
        """
        choices: dict[str, list[Record]] = {case: [] for case in ("", *dict(self.track.cells))}
        for entry in self.track.entries:
            for row in entry.cells.values():
                choices[""].append(row)
                choices[row.case].append(row)
        found = {case: self.device.ranked(rows)[0] for case, rows in choices.items()}
        return {**found, "": self.track}

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the address of the board's view."""
        track = self.track
        return {"view": "board", "device": self.device.slug, "op": track.op, "track": track.name}

    @property
    def address(self) -> str:
        """The address of the board's view, as `page.js` makes it of the fields."""
        return " ".join(self.fields.values())

    def link(self, case: str = "", row: str = "") -> str:
        """Return the link to the board, to one of its cases, or to a solution's row."""
        return link(**self.fields, case=case, row=row)

    def tabs(self, boards: Sequence[Board]) -> dict[str, dict[str, Board]]:
        """Return the board behind each tab: the one with the most in common with this one."""
        labels: dict[str, Callable[[Board], str]] = {
            "Op": lambda board: board.track.op,
            "Device": lambda board: board.device.name,
            "Track": lambda board: board.track.name,
        }
        tabs = {}
        for kind, label_of in labels.items():
            nearest = sorted(
                boards, key=lambda b: (b.device is not self.device, b.track.name != self.track.name)
            )
            behind = {label_of(board): board for board in reversed(nearest)}
            tabs[kind] = {label: behind[label] for label in dict.fromkeys(map(label_of, boards))}
            boards = [board for board in boards if label_of(board) == label_of(self)]
        return tabs


def columns(track: Track) -> list[Column]:
    """Return the columns of a ranking."""
    return [column for column in COLUMNS if column.style and column.known(track)]


def times(track: Track, quantity: Quantity) -> dict[str, list[Any]]:
    """Return the cases of a quantity, each solution's medians, and who is too slow to be drawn.

    The browser draws the chart: a value has an interval, and is None without a time.
    """
    found: dict[str, dict[str, Estimate]] = {}
    for entry in track.entries:
        for case, direction in track.cells:
            row = track.row(entry, (case, direction))
            if row and (of_row := quantity.times(row)):
                found.setdefault(entry.solution, {})[case] = of_row["solution"]
    cases = [case for case in dict(track.cells) if any(case in own for own in found.values())]
    fastest = {case: min(of[case].value for of in found.values() if case in of) for case in cases}
    slow = [name for name, own in found.items()
            if all(time.value > SLOW * fastest[case] for case, time in own.items())]  # fmt: skip
    series = [
        {"name": entry.solution, "peer": entry.peer, "values": [*map(own.get, cases)]}
        for entry in track.entries
        if (own := found.get(entry.solution)) and entry.solution not in slow
    ]
    return {"cases": cases, "series": series, "slow": slow}
