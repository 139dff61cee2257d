"""The data of the page's views: the devices, and all facts on each solution."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path

from common.board import columns, modelled
from common.board.columns import Column
from common.board.devices import Device, Section, devices
from common.board.model import DEFAULT, GPUS
from common.board.modelled import Key
from common.board.page import sources
from common.board.ranking import (
    Cell,
    Entry,
    Estimate,
    TimePair,
    Track,
    combined,
    rank,
    ranked_times,
)
from common.board.table import About, Table, op_order
from common.records.lines import Counted, Record, Summary
from common.records.runs import Results, moment
from common.solutions import Solution


@dataclass(frozen=True)
class Point:
    """A solution's speed in one run."""

    run: str
    when: datetime
    score: Estimate
    sources: str
    """The digest of the measured source; empty in some earlier records."""


ALL = ""
"""The choice of every direction, or of every case."""
Histories = Mapping[str, list[Point]]
"""The points of each solution in chronological order."""


@dataclass(frozen=True)
class Shown:
    """A device on the page."""

    device: Device
    gpu: str = ""
    """The GPU whose modelled times replace missing measured times; empty with measured times."""

    @property
    def slug(self) -> str:
        """The name of the device's folder, which links use."""
        return self.device.results.path.name

    @property
    def timed(self) -> bool:
        """Whether its entries are ranked."""
        return self.device.results.timed or bool(self.gpu)

    @property
    def sections(self) -> list[Section]:
        """The ops that have a row on the device."""
        return [section for section in self.device.sections if section.tracks]

    def section(self, op: str) -> Section | None:
        """Return the op's section; None where the op has no row."""
        return next((section for section in self.sections if section.op == op), None)

    def histories(self, track: Track) -> Histories:
        """Return the speeds of every solution of a track in all runs."""
        return self._histories[track.op][track.name]

    def history(self, solution: Solution) -> dict[str, list[Point]]:
        """Return the solution's speeds in all runs, by track; tracks without speeds are absent."""
        tracks = self._histories.get(solution.op, {})
        return {
            name: of_track[solution.name]
            for name, of_track in tracks.items()
            if solution.name in of_track
        }

    @cached_property
    def _histories(self) -> dict[str, dict[str, Histories]]:
        """The speeds in all runs, by op, track and solution."""
        return {
            section.op: {
                track.name: histories(self.device.results, track) for track in section.tracks
            }
            for section in self.sections
        }


@dataclass(frozen=True)
class Standing(columns.Standing):
    """A solution in one track of a device on the page."""

    shown: Shown = field(kw_only=True)

    @property
    def rows(self) -> list[tuple[str, str, Record | None]]:
        """Each case and direction of the track, with the solution's row or None."""
        return [(*cell, self.entry.cells.get(cell)) for cell in self.track.cells]

    def late(self, row: Record) -> bool:
        """Return whether an earlier clock took the row's times; no view shows them."""
        return self.track.row(self.entry, (row.case, row.direction)) is None


RECENT = 10
"""The number of runs that the overview lists."""


@dataclass(frozen=True)
class RunOfDevice:
    """One run on one device."""

    shown: Shown
    when: datetime
    ops: Sequence[str]
    solutions: int
    rows: int


@dataclass(frozen=True)
class Site:
    """All data of the page."""

    devices: Sequence[Shown]
    solutions: Sequence[Solution]
    about: Mapping[str, About]
    counts: Mapping[Key, Counted] = field(default_factory=dict)

    @classmethod
    def of(cls, recorded: Iterable[Results], all_solutions: Iterable[Solution]) -> Site:
        """Return the site of these records and of the solutions in this tree."""
        recorded, all_solutions = list(recorded), list(all_solutions)
        about = {solution.name: About(solution.note, solution.digest) for solution in all_solutions}
        counts = modelled.latest(recorded)
        timed = [modelled.with_modelled_times(results) for results in recorded]
        gpus = {results.path: gpu for results, gpu in timed}
        shown = [
            Shown(device, gpus[device.results.path])
            for device in devices([results for results, _ in timed], about)
        ]
        measured = {row.solution for device in shown for s in device.sections for row in s.rows}
        listed = sorted(
            (s for s in all_solutions if not s.peer or s.name in measured),
            key=lambda solution: (op_order(solution.op), solution.peer, solution.name),
        )
        return cls(shown, listed, about, counts)

    @cached_property
    def ops(self) -> list[str]:
        """The ops that have a solution, in the order of boards."""
        return list(dict.fromkeys(solution.op for solution in self.solutions))

    @cached_property
    def names(self) -> list[str]:
        """Every solution's name."""
        return [solution.name for solution in self.solutions]

    @cached_property
    def hues(self) -> dict[str, int]:
        """The index of each solution's hue: its place among the op's contributors or peers."""
        places: Counter[tuple[str, bool]] = Counter()
        hues = {}
        for solution in self.solutions:
            hues[solution.name] = places[solution.op, solution.peer]
            places[solution.op, solution.peer] += 1
        return hues

    @cached_property
    def runs(self) -> list[RunOfDevice]:
        """The latest runs of all devices, the newest first."""
        runs = []
        for shown in self.devices:
            rows = defaultdict(list)
            for row in shown.device.results.rows:
                rows[row.run].append(row)
            for run, of_run in rows.items():
                if when := moment(shown.device.results.names.get(run, "")):
                    ops = list(dict.fromkeys(row.op for row in of_run))
                    solutions = len({row.solution for row in of_run})
                    runs.append(RunOfDevice(shown, when, ops, solutions, len(of_run)))
        return sorted(runs, key=lambda run: run.when, reverse=True)[:RECENT]

    def first(self, op: str) -> tuple[Shown, Track] | None:
        """Return the op's main track on the first device that has the op."""
        sections = ((shown, shown.section(op)) for shown in self.devices)
        return next(((shown, section.tracks[0]) for shown, section in sections if section), None)

    @cached_property
    def mains(self) -> list[tuple[Shown, Track]]:
        """The main track of each op, with the first device that has the op."""
        return [first for op in self.ops if (first := self.first(op))]

    def standings(self, solution: Solution) -> list[Standing]:
        """Return the solution's standing in each track of each device that measured it."""
        return self._standings.get(solution.name, [])

    @cached_property
    def _standings(self) -> dict[str, list[Standing]]:
        standings: dict[str, list[Standing]] = defaultdict(list)
        for shown in self.devices:
            for section in shown.sections:
                for track in section.tracks:
                    for entry in track.entries:
                        standing = Standing(track, entry, self.about, shown.timed, shown=shown)
                        standings[entry.solution].append(standing)
        return standings

    def work(self, solution: Solution) -> list[Table]:
        """Return the solution's counted work."""
        counts = [count for count in self.counts.values() if count.solution == solution.name]
        return modelled.work_tables(counts, self.about)

    def modelled(self, solution: Solution) -> list[tuple[Counted, Summary]]:
        """Return the solution's counted cases with their modelled microseconds."""
        counts = [count for count in self.counts.values() if count.solution == solution.name]
        return [(count, modelled.time_of(count, GPUS[DEFAULT])) for count in counts if count.steps]

    def files(self) -> dict[str, Path]:
        """Return every solution's files by `handle/path`."""
        return {
            f"{solution.handle}/{name}": path
            for solution in self.solutions
            for name, path in sources.files(solution).items()
        }


# --- the rankings of a track: all cells, and by direction, by case and by both --------------------


@dataclass(frozen=True)
class Ranking:
    """The ranking of a track for one of the page's choices of direction and case."""

    direction: str
    case: str
    shown: Shown
    track: Track
    about: Mapping[str, About]

    @cached_property
    def standings(self) -> list[columns.Standing]:
        """The rows, the best first."""
        return [
            columns.Standing(self.track, entry, self.about, self.shown.timed)
            for entry in self.track.entries
        ]

    @property
    def single(self) -> bool:
        """Whether the choice is one direction of one case, which has a single time."""
        return len(self.track.cells) == 1

    @cached_property
    def columns(self) -> list[Column]:
        """The columns of the table."""
        unfit = "several" if self.single else "one"
        return [
            column
            for column in columns.COLUMNS
            if column.style and column.cases != unfit and column.known(self.track)
            if self.shown.timed or not column.timed
        ]

    def place(self, entry: Entry) -> str:
        """Return the place, such as `2`, `2=` for a tie, or a dash."""
        if not (entry.rank and self.shown.timed):
            return "–"
        return f"{entry.rank}{'=' * (self._tied[entry.rank] > 1)}"

    @cached_property
    def _tied(self) -> Counter[int | None]:
        return Counter(entry.rank for entry in self.track.entries)


def rankings(
    shown: Shown, section: Section, track: Track, about: Mapping[str, About]
) -> Iterator[Ranking]:
    """Yield the ranking of each choice that has a row; all cells of the track come first.

    >>> [(ranking.direction, ranking.case) for ranking in rankings(shown, section, track, about)]
    [('', ''), ('', 'c1'), ('forward', ''), ('forward', 'c1')]
    """
    rows = [row for row in section.rows if row.track == track.name]
    cases = list(dict.fromkeys(case for case, _ in track.cells))
    for direction in (ALL, *track.directions):
        for case in (ALL, *cases):
            chosen = [
                row for row in rows if direction in (ALL, row.direction) and case in (ALL, row.case)
            ]
            if chosen:
                (of_choice,) = rank(chosen)
                yield Ranking(direction, case, shown, of_choice, about)


# --- speeds over the runs -------------------------------------------------------------------------


def histories(results: Results, track: Track) -> Histories:
    """Return every solution's speeds in the runs that timed all the track's cells."""
    measured: dict[tuple[str, str], dict[Cell, Record]] = defaultdict(dict)
    cells = set(track.cells)
    for row in results.rows:
        if row.op == track.op and row.tier == "board" and (row.case, row.direction) in cells:
            measured[row.solution, row.run][row.case, row.direction] = row
    points: dict[str, list[Point]] = defaultdict(list)
    for (solution, run), rows in measured.items():
        times = [pair for row in rows.values() if (pair := _times(row))]
        when = moment(results.names.get(run, ""))
        if len(times) == len(cells) and when:
            sources = next(iter(rows.values())).sources
            points[solution].append(Point(run, when, combined(times), sources))
    return {
        name: sorted(of_solution, key=lambda point: point.when)
        for name, of_solution in points.items()
    }


def _times(row: Record) -> TimePair | None:
    times = ranked_times(row)
    if row.verdict != "PASSED" or not times:
        return None
    return times["solution"], times["eager"]
