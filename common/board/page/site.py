"""The page: every view, rendered from its template, in one HTML file."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from common import files
from common.board import table
from common.board.devices import Section, side_by_side
from common.board.model import DEFAULT, GPUS
from common.board.page import charts, rendering, sources
from common.board.page.rendering import draw
from common.board.page.views import Point, Shown, Site, Standing, rankings
from common.board.plots import sweeps
from common.board.plots.overview import Panel, panels
from common.board.ranking import Entry, Track
from common.solutions import Solution

HERE = Path(__file__).parent
STYLES = ("vendor/uplot/uPlot.min.css", "assets/page.css")
SCRIPTS = (
    "vendor/uplot/uPlot.iife.min.js", "vendor/sortable/sortable.min.js", "vendor/diff/diff.min.js",
    "assets/charts.js", "assets/compare.js", "assets/page.js",
)  # fmt: skip
WORDS = "assets/korean.json"
"""The file with the Korean translation of each English text of the page."""
PAGE = "index.html"
JUMPS = {
    "standing": "Place", "cases": "Cases", "history": "History",
    "work": "Counted work", "readme": "README", "source": "Source",
}  # fmt: skip
"""The title of each part of a solution's view."""
Part = tuple[str, str]
"""The name and the text of a part of the page."""
Sweeps = Mapping[str, charts.Chart]
"""A device's charts of the plots' cases, by the name of the chart's part."""


def write(site: Site, folder: Path) -> Path:
    """Write the page into a folder, and return the page's path."""
    swept = {shown.slug: dict(_swept(site, shown)) for shown in site.devices}
    charted = dict(_charts(site, swept))
    parts = {**dict(_files(site)), **charted, **dict(_views(site, swept, charted))}
    styles = [Markup((HERE / path).read_text()) for path in STYLES]
    scripts = [Markup((HERE / path).read_text()) for path in SCRIPTS]
    page = draw(
        "page.html",
        styles=styles,
        scripts=scripts,
        policy=rendering.policy(scripts, styles),
        words=Markup(rendering.embedded({"ko": json.loads((HERE / WORDS).read_text())})),
        parts=Markup(rendering.packed(parts)),
        first="overview" if site.mains else "missing",
        board=_board_name(*site.mains[0]) if site.mains else "missing",
        pair=_pair(site),
        several=len(site.devices) > 1,
    )
    folder.mkdir(parents=True, exist_ok=True)
    files.replace(folder / PAGE, page.encode())
    return folder / PAGE


def _board_name(shown: Shown, track: Track) -> str:
    """Return the name of the part that holds a track's board."""
    return f"board/{shown.slug}/{track.op}/{track.name}"


def _pair(site: Site) -> tuple[str, str]:
    """Return the initial pair to compare: the two best contributors' solutions of one op.

    Peers replace missing contributors. Both names are empty where no op has two solutions.
    """
    for _, track in site.mains:
        entries = [entry for entry in track.entries if entry.solution in site.names]
        if len(entries) > 1:
            first, second, *_ = sorted(entries, key=lambda entry: entry.peer)
            return first.solution, second.solution
    return "", ""


# --- parts ----------------------------------------------------------------------------------------


def _files(site: Site) -> Iterator[Part]:
    files = site.files()
    for name, text in zip(files, sources.all_lines(files.values()), strict=True):
        yield f"file/{name}", text
    for folder in dict.fromkeys(solution.path.parent for solution in site.solutions):
        yield f"readme/{folder.name}", sources.readme(folder, site.names)


def _charts(site: Site, swept: Mapping[str, Sweeps]) -> Iterator[Part]:
    for shown in site.devices:
        for section, track in _tracks(shown):
            for direction in track.directions:
                name = f"times/{shown.slug}/{section.op}/{track.name}/{direction}"
                yield name, charts.times(track, direction).json(site.hues)
            place = f"{shown.slug}/{section.op}/{track.name}"
            for speed, chart in _speeds(shown, track):
                yield f"{speed}/{place}", chart.json(site.hues)
        for name, chart in swept[shown.slug].items():
            yield name, chart.json(site.hues)
        for solution in site.solutions:
            if points := shown.history(solution):
                yield (
                    f"history/{shown.slug}/{solution.name}",
                    charts.history(points).json(site.hues),
                )


SPEEDS = ("record", "error", "memory")
"""The charts of a track's speeds: over the runs, over the error and over the peak memory."""


def _speeds(shown: Shown, track: Track) -> Iterator[tuple[str, charts.Chart]]:
    """Yield the name and the chart of each of SPEEDS with more than one x value."""
    speed_charts = (
        charts.record(shown.histories(track)),
        charts.against(track, "error / eager's", lambda entry: entry.error),
        charts.against(track, "peak memory, MiB", _mebibytes),
    )
    for name, chart in zip(SPEEDS, speed_charts, strict=True):
        if len(chart.x) > 1:
            yield name, chart


def _mebibytes(entry: Entry) -> float | None:
    return None if entry.peak_memory is None else entry.peak_memory / 2**20


def _swept(site: Site, shown: Shown) -> Iterator[tuple[str, charts.Chart]]:
    rows = sweeps.rows_of(shown.device.results, site.about)
    for plot in sweeps.plots(rows):
        for number, chart in enumerate(charts.swept(plot)):
            yield f"sweep/{shown.slug}/{plot.sweep.op}/{plot.sweep.name}/{number}", chart


def _tracks(shown: Shown) -> Iterator[tuple[Section, Track]]:
    for section in shown.sections:
        for track in section.tracks:
            yield section, track


def _views(site: Site, swept: Mapping[str, Sweeps], charted: Collection[str]) -> Iterator[Part]:
    """Yield the views; `charted` holds the names of the existing charts."""
    yield "missing", draw("missing.html")
    yield "overview", draw("overview.html", site=site, panels=list(_panels(site)))
    yield "compare", draw("compare.html", site=site)
    timed = [shown.device for shown in site.devices if shown.timed]
    if len(site.devices) > 1:
        yield "devices", draw("devices.html", tables=side_by_side(timed, site.about))
    for shown in site.devices:
        for section, track in _tracks(shown):
            of_op = [(name, chart.title) for name, chart in swept[shown.slug].items()
                     if name.split("/")[2] == section.op]  # fmt: skip
            place = f"{shown.slug}/{section.op}/{track.name}"
            speeds = [speed for speed in SPEEDS if f"{speed}/{place}" in charted]
            yield _board_name(shown, track), _board(site, shown, section, track, of_op, speeds)
    for solution in site.solutions:
        yield f"solution/{solution.name}", _solution(site, solution)


def _panels(site: Site) -> Iterator[tuple[Shown, Panel]]:
    """Yield each op's panel of the README's picture: the fastest solution of each folder."""
    for shown, track in site.mains:
        yield from ((shown, panel) for panel in panels([track]))


def _board(
    site: Site,
    shown: Shown,
    section: Section,
    track: Track,
    swept: Sequence[Part],
    speeds: Collection[str],
) -> str:
    influences = (reasons for entry in track.entries for reasons in entry.disturbed.values())
    return draw(
        "board.html",
        site=site,
        shown=shown,
        section=section,
        track=track,
        rankings=list(rankings(shown, section, track, site.about)),
        handles=sorted({entry.solution.partition("/")[0] for entry in track.entries}),
        sweeps=swept,
        speeds=speeds,
        stale=any(table.stale(entry, site.about) for entry in track.entries),
        disturbed=table.by_clock(influences) if shown.device.results.timed else {},
        absent=shown.device.results.absent,
    )


def _solution(site: Site, solution: Solution) -> str:
    standings = site.standings(solution)
    contents = {
        "standing": standings,
        "cases": standings,
        "history": _histories(site, solution),
        "work": site.work(solution),
        "readme": (solution.path.parent / "README.md").is_file(),
        "source": sources.files(solution),
    }
    stale = (standing.shown.device.name for standing in standings if standing.stale)
    return draw(
        "solution.html",
        site=site,
        solution=solution,
        standings=standings,
        by_device=_by_device(standings),
        histories=contents["history"],
        work=contents["work"],
        modelled=site.modelled(solution),
        gpu=GPUS[DEFAULT].name,
        readme=contents["readme"],
        files=contents["source"],
        stale=list(dict.fromkeys(stale)),
        jumps=[(name, JUMPS[name]) for name, content in contents.items() if content],
    )


def _by_device(standings: Sequence[Standing]) -> list[tuple[Shown, list[Standing]]]:
    grouped = itertools.groupby(standings, lambda standing: standing.shown.slug)
    by_slug = [list(of_device) for _, of_device in grouped]
    return [(of_device[0].shown, of_device) for of_device in by_slug]


def _histories(site: Site, solution: Solution) -> list[tuple[Shown, dict[str, list[Point]]]]:
    """Return each device that has points, with the points of each track."""
    return [(shown, points) for shown in site.devices if (points := shown.history(solution))]
