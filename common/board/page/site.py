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

from common import files
from common.board import modelled, table
from common.board.columns import COLUMNS
from common.board.devices import Device, side_by_side
from common.board.page import charts, rendering, sources
from common.board.page.boards import ALL, Board, devices_of
from common.board.page.charts import Chart
from common.board.page.rendering import draw, link
from common.board.plots import sweeps
from common.board.plots.overview import panels
from common.board.ranking import Entry
from common.board.table import About, op_order
from common.records.lines import Record
from common.records.runs import Results, moment
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

    def __init__(self, recorded: Iterable[Results], solutions: Iterable[Solution]) -> None:
        """Rank these records of the solutions in this tree."""
        recorded, solutions = list(recorded), list(solutions)
        self.about = {each.name: About(each.note, each.digest) for each in solutions}
        self.devices = devices_of(recorded, self.about)
        self.boards = [
            Board(device, section, track, self.about)
            for device in self.devices
            for section in device.sections
            for track in section.tracks
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
        self.counts = modelled.latest(recorded)
        self.texts: dict[str, int] = {}
        """The number of each text that several views show: charts, sources and READMEs."""
        self.times = {board.address: self._times(board) for board in self.boards}

    def write(self, folder: Path) -> Path:
        """Write the page into a folder, and return the page's path."""
        script, style = (
            "\n".join((HERE / path).read_text() for path in paths) for paths in (SCRIPTS, STYLES)
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
        files.replace(folder / PAGE, page.encode())
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
        shown = [(board, panel) for board in self.mains for panel in panels([board.track])]
        overview = draw("overview.html", panels=shown, runs=_recent(self.devices))
        yield "missing", draw("missing.html")
        yield "overview", overview
        yield "", overview if self.boards else draw("missing.html")
        by_op = groupby(self.solutions, lambda each: each.op)
        names = {op: [each.name for each in of_op] for op, of_op in by_op}
        yield "compare", draw("compare.html", names=names)
        timed = [device for device in self.devices if device.timed]
        yield "devices", draw("devices.html", tables=side_by_side(timed, self.about))
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
        for plot in sweeps.plots(sweeps.rows_of(device.results, self.about)):
            drawn = [charts.swept(plot, panel) for panel in plot.panels]
            found[plot.sweep.op] += [(self._chart(each), each.title) for each in drawn]
        return found

    def _times(self, board: Board) -> dict[str, int]:
        """Return the number of the chart of times in each direction that a device timed."""
        directions = board.track.directions if board.device.timed else []
        return {each: self._chart(charts.times(board.track, each)) for each in directions}

    def _speeds(self, board: Board) -> dict[str, int]:
        """Return the number of each chart of the track's speeds with more than one x value."""
        speeds = {
            "error": charts.against(board.track, "error / eager's", lambda entry: entry.error),
            "memory": charts.against(board.track, "peak memory, MiB", _mebibytes),
        }
        return {name: self._chart(each) for name, each in speeds.items() if len(each.x) > 1}

    def _board(self, board: Board, swept: Sequence[tuple[int, str]]) -> str:
        entries, timed = board.track.entries, board.device.timed
        influences = [reasons for entry in entries for reasons in entry.disturbed.values()]
        return draw(
            "board.html",
            board=board,
            tabs=board.tabs(self.boards),
            handles=sorted({entry.solution.partition("/")[0] for entry in entries}),
            disturbed=table.by_clock(influences) if board.device.results.timed else {},
            times=self.times[board.address],
            tables={
                "Every time as a table": table.times(board.track) if timed else [],
                "Peak memory": table.memory(board.track) if timed else [],
                "Parts of a call": table.parts(board.section.rows) if timed else [],
            },
            speeds=self._speeds(board) if timed else {},
            swept=swept,
        )

    def _solution(self, solution: Solution) -> str:
        name, folder = solution.name, solution.path.parent
        counts = [count for count in self.counts.values() if count.solution == name]
        boards = [board for board in self.boards if name in board.choices[ALL]]
        return draw(
            "solution.html",
            solution=solution,
            site=self,
            boards=boards,
            stale={b.device.name: None for b in boards if b.choices[ALL][name].stale},
            places=[column for column in COLUMNS if column.style in PLACES],
            work=modelled.work_tables(counts, self.about),
            has_readme=(folder / "README.md").is_file(),
            readme=self._number(sources.readme(folder, self.hues)),
            files={
                file: self._number(sources.lines(path))
                for file, path in sources.files(solution).items()
            },
        )


def _mebibytes(entry: Entry) -> float | None:
    return None if entry.peak_memory is None else entry.peak_memory / 2**20


def _recent(devices: Iterable[Device]) -> list[tuple[datetime, str, list[str], int, int]]:
    """Return the latest runs: their start, device, ops, and numbers of solutions and rows."""
    runs = []
    for device in devices:
        rows: dict[str, list[Record]] = defaultdict(list)
        for row in device.results.rows:
            rows[row.run].append(row)
        for run, of_run in rows.items():
            if when := moment(device.results.names.get(run, "")):
                ops = list(dict.fromkeys(row.op for row in of_run))
                solutions = {row.solution for row in of_run}
                runs.append((when, device.name, ops, len(solutions), len(of_run)))
    return sorted(runs, reverse=True)[:RECENT]
