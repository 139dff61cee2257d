"""The page: every view, rendered from its template, in one HTML file."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path

import msgspec
from markupsafe import Markup

from common import paths
from common.board import modelled, table
from common.board.columns import COLUMNS, side_by_side
from common.board.devices import Device
from common.board.page import boards, rendering
from common.board.page.boards import ALL, Board, Chart
from common.board.page.rendering import draw, link
from common.board.plots import overview, sweeps
from common.board.ranking import op_order
from common.records.runs import moment
from common.solutions import Solution

HERE = Path(__file__).parent
STYLES = ("vendor/uplot/uPlot.min.css", "assets/page.css")
SCRIPTS = (
    "vendor/uplot/uPlot.iife.min.js", "vendor/sortable/sortable.min.js",
    "assets/charts.js", "assets/page.js",
)  # fmt: skip
WORDS = "assets/korean.json"
"""The file with the Korean translation of each English text of the page."""
PAGE = "index.html"
PLACES = ("place", "speed", "share", "number")
"""The styles of the columns of a solution's places."""
RECENT = 10
"""The number of runs that the overview lists."""


class Site:
    """The views of the page."""

    def __init__(self, devices: Sequence[Device], solutions: Iterable[Solution]) -> None:
        """Take the ranked devices, and the solutions in this tree."""
        solutions = list(solutions)
        self.devices = devices
        self.boards = [
            Board(device, track) for device in devices for track in device.tracks.values()
        ]
        measured = {entry.solution for board in self.boards for entry in board.track.entries}
        self.solutions = sorted(
            (each for each in solutions if not each.peer or each.name in measured),
            key=lambda each: (op_order(each.op), each.peer, each.name),
        )
        self.hues = {
            each.name: hue
            for _, group in groupby(self.solutions, lambda each: (each.op, each.peer))
            for hue, each in enumerate(group)
        }
        """The index of each solution's hue: its place among the op's contributors or peers."""
        first = {board.track.op: board for board in reversed(self.boards)}
        self.mains = [first[op] for op in sorted(first, key=op_order)]
        """The main track of each op on the first device that has the op."""
        self.counts = modelled.latest(device.results for device in devices)
        self.texts: dict[str, int] = {}
        """The number of each text that several views show: charts, sources and READMEs."""
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
            policy=rendering.policy(script, style),
            packed=rendering.packed(
                {"ko": words, "views": views, "texts": list(self.texts), "hues": self.hues}
            ),
            compared=self._compared(),
            several=len(self.devices) > 1,
        )
        folder.mkdir(parents=True, exist_ok=True)
        paths.replace(folder / PAGE, page.encode())
        return folder / PAGE

    def _compared(self) -> str:
        """Return the link to the two best contributors, or peers, of the first op that has two."""
        for board in self.mains:
            best = sorted(board.track.entries, key=lambda entry: entry.peer)
            if len(best) > 1:
                return link(view="compare", one=best[0].solution, other=best[1].solution)
        return link(view="compare")

    def views(self) -> Iterator[tuple[str, str]]:
        """Yield the address and the HTML of each view."""
        shown = [(b, panel) for b in self.mains for panel in overview.panels([b.track])]
        recent = sorted(_runs(self.devices), reverse=True)[:RECENT]
        first = draw("overview.html", panels=shown, runs=recent)
        yield "missing", draw("missing.html")
        yield "overview", first
        yield "", first if self.boards else draw("missing.html")
        by_op = groupby(self.solutions, lambda each: each.op)
        names = {op: [each.name for each in of_op] for op, of_op in by_op}
        yield "compare", draw("compare.html", names=names)
        timed = [device for device in self.devices if device.timed]
        yield "devices", draw("devices.html", tables=side_by_side(timed))
        swept = {device.slug: self._swept(device) for device in self.devices}
        for board in self.boards:
            html = self._board(board, swept[board.device.slug][board.track.op])
            yield board.address, html
            if board is self.mains[0]:
                yield "board", html
        for solution in self.solutions:
            yield f"solution {solution.name}", self._solution(solution)

    def _number(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))

    def _chart(self, chart: Chart) -> int:
        return self._number(msgspec.json.encode(chart).decode())

    def _swept(self, device: Device) -> dict[str, list[tuple[int, str]]]:
        """Return the number and the title of each chart of the device's sweeps, by op."""
        found: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for plot in sweeps.of_device(device):
            drawn = [boards.swept(plot, panel) for panel in plot.panels]
            found[plot.sweep.op] += [(self._chart(each), each.title) for each in drawn]
        return found

    def _times(self, board: Board) -> dict[str, int]:
        """Return the number of the chart of times in each direction that a device timed."""
        directions = board.track.directions if board.device.timed else []
        return {each: self._chart(boards.times(board.track, each)) for each in directions}

    def _speeds(self, board: Board) -> dict[str, int]:
        """Return the number of each chart of the track's speeds with more than one x value."""
        speeds = {
            "error": boards.against(board.track, "error / eager's", lambda entry: entry.error),
            "memory": boards.against(
                board.track, "peak memory, MiB",
                lambda entry: None if entry.peak_memory is None else entry.peak_memory / 2**20,
            ),
        }  # fmt: skip
        return {name: self._chart(each) for name, each in speeds.items() if len(each.x) > 1}

    def _board(self, board: Board, swept: Sequence[tuple[int, str]]) -> str:
        device, track = board.device, board.track
        influences = [reasons for e in track.entries for reasons in e.disturbed.values()]
        return draw(
            "board.html",
            columns_of=boards.columns,
            board=board,
            tabs=board.tabs(self.boards),
            disturbed=table.by_clock(influences) if device.results.timed else {},
            times=self.times[board.address],
            speeds=self._speeds(board) if device.timed else {},
            swept=swept,
        )

    def _solution(self, solution: Solution) -> str:
        name, folder = solution.name, solution.path.parent
        counts = [count for count in self.counts.values() if count.solution == name]
        standings = {
            board: entry for board in self.boards if (entry := board.choices[ALL].entry(name))
        }
        return draw(
            "solution.html",
            columns_of=boards.columns,
            solution=solution,
            site=self,
            standings=standings,
            stale={b.device.name: None for b, entry in standings.items() if entry.stale},
            places=[column for column in COLUMNS if column.style in PLACES],
            work=modelled.work_tables(counts, {name}),
            has_readme=(folder / "README.md").is_file(),
            readme=self._number(rendering.readme(folder, self.hues)),
            files={
                file: self._number(rendering.lines(path))
                for file, path in rendering.files(solution).items()
            },
        )


def _runs(devices: Iterable[Device]) -> Iterator[tuple[datetime, str, list[str], int, int]]:
    """Yield each run's start, device, ops, and numbers of solutions and rows."""
    for device in devices:
        for run, name in device.results.names.items():
            rows = [row for row in device.results.rows if row.run == run]
            if rows and (when := moment(name)):
                ops = list(dict.fromkeys(row.op for row in rows))
                yield when, device.name, ops, len({row.solution for row in rows}), len(rows)
