"""What the page's views show: the devices, and each solution with all that is known of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import chain
from pathlib import Path

from common.board import columns, compiled, modelled
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
from common.records.lines import Compiled, Counted, Past, Record, Summary
from common.records.runs import Results, moment
from common.solutions import Solution


@dataclass(frozen=True)
class Point:
    """The speed in one run."""

    run: str
    when: datetime
    score: Estimate
    sources: str
    """The digest of what was measured; empty where `prune` has cut it."""


ALL = ""
"""Every direction, or every case."""
Histories = Mapping[str, list[Point]]
"""By solution, the points in the order of time."""


@dataclass(frozen=True)
class Shown:
    """A device on the page."""

    device: Device
    gpu: str = ""
    """The GPU whose modelled times stand in the place of measured ones; empty where there are."""

    @property
    def slug(self) -> str:
        """The name of the device's folder, by which links name it."""
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
        """Return the op's section; None where it has no row."""
        return next((section for section in self.sections if section.op == op), None)

    def histories(self, track: Track) -> Histories:
        """Return the speeds of every solution of a track over all runs."""
        return self._histories[track.op][track.name]

    def history(self, solution: Solution) -> dict[str, list[Point]]:
        """Return the solution's speeds over all runs, by track, where there are any."""
        tracks = self._histories.get(solution.op, {})
        return {name: each[solution.name] for name, each in tracks.items() if solution.name in each}

    @cached_property
    def _histories(self) -> dict[str, dict[str, Histories]]:
        """The speeds over all runs, by op, track and solution."""
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
        """Each case and direction of the track, with the solution's row where it has one."""
        return [(*cell, self.entry.cells.get(cell)) for cell in self.track.cells]

    def late(self, row: Record) -> bool:
        """Return whether an earlier clock took the row's times, which are shown nowhere."""
        return self.track.row(self.entry, (row.case, row.direction)) is None


RECENT = 10
"""The runs that the overview lists."""


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
    """Everything that the page is drawn from."""

    devices: Sequence[Shown]
    solutions: Sequence[Solution]
    about: Mapping[str, About]
    compiled: Sequence[Compiled] = ()
    counts: Mapping[Key, Counted] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        boards: Iterable[Results],
        everyone: Iterable[Solution],
        compilations: Sequence[Compiled] = (),
    ) -> Site:
        """Return the site of some records and of the solutions in this tree."""
        boards, everyone = list(boards), list(everyone)
        about = {solution.name: About(solution.note, solution.digest) for solution in everyone}
        counts = modelled.latest(boards)
        stand_ins = [modelled.with_modelled_times(board) for board in boards]
        gpus = {each.path: gpu for each, gpu in stand_ins}
        found = devices([each for each, _ in stand_ins], about)
        shown = [Shown(device, gpus[device.results.path]) for device in found]
        known = {line.solution for each in shown for s in each.sections for line in s.rows}
        listed = sorted(
            (solution for solution in everyone if not solution.peer or solution.name in known),
            key=lambda each: (op_order(each.op), each.peer, each.name),
        )
        return cls(shown, listed, about, compilations, counts)

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
        """The number of each solution's hue: its place among the op's contributors or peers."""
        places: Counter[tuple[str, bool]] = Counter()
        found = {}
        for solution in self.solutions:
            found[solution.name] = places[solution.op, solution.peer]
            places[solution.op, solution.peer] += 1
        return found

    @cached_property
    def runs(self) -> list[RunOfDevice]:
        """The latest runs of all devices, the newest first."""
        found = []
        for shown in self.devices:
            rows = defaultdict(list)
            for row in shown.device.results.rows:
                rows[row.run].append(row)
            for run, several in rows.items():
                if when := moment(shown.device.results.names.get(run, "")):
                    ops = list(dict.fromkeys(row.op for row in several))
                    solutions = len({row.solution for row in several})
                    found.append(RunOfDevice(shown, when, ops, solutions, len(several)))
        return sorted(found, key=lambda each: each.when, reverse=True)[:RECENT]

    def first(self, op: str) -> tuple[Shown, Track] | None:
        """Return the op's main track on the first device that has it."""
        shownses = ((shown, shown.section(op)) for shown in self.devices)
        return next(((shown, each.tracks[0]) for shown, each in shownses if each), None)

    @cached_property
    def mains(self) -> list[tuple[Shown, Track]]:
        """The main track of each op, with the first device that has it."""
        return [there for op in self.ops if (there := self.first(op))]

    def standings(self, solution: Solution) -> list[Standing]:
        """Return the solution's place in each track of each device that has a row of it."""
        return self._standings.get(solution.name, [])

    @cached_property
    def _standings(self) -> dict[str, list[Standing]]:
        standingses: dict[str, list[Standing]] = defaultdict(list)
        for shown in self.devices:
            for section in shown.sections:
                for track in section.tracks:
                    for entry in track.entries:
                        standing = Standing(track, entry, self.about, shown.timed, shown=shown)
                        standingses[entry.solution].append(standing)
        return standingses

    def kernels(self, solution: Solution) -> list[Table]:
        """Return what compilers made of the solution's kernels."""
        return compiled.tables(line for line in self.compiled if line.solution == solution.name)

    def recompiled(self, solution: Solution) -> bool:
        """Return whether the source has changed since its kernels were compiled."""
        digests = {line.sources for line in self.compiled if line.solution == solution.name}
        return bool(digests) and digests != {self.about[solution.name].digest}

    def work(self, solution: Solution) -> list[Table]:
        """Return the solution's counted work."""
        counts = [count for count in self.counts.values() if count.solution == solution.name]
        return modelled.work_tables(counts, self.about)

    def modelled(self, solution: Solution) -> list[tuple[Counted, float]]:
        """Return the solution's counted cases with the microseconds that the model gives them."""
        counts = [count for count in self.counts.values() if count.solution == solution.name]
        return [(count, modelled.time_of(count, GPUS[DEFAULT])) for count in counts if count.steps]

    def files(self) -> dict[str, Path]:
        """Return every file that belongs to a solution, as `handle/path` in its folder."""
        return {
            f"{solution.handle}/{name}": path
            for solution in self.solutions
            for name, path in sources.files(solution).items()
        }


# --- a track ranked whole, by direction, by case and by both --------------------------------------


@dataclass(frozen=True)
class Ranking:
    """The ranking of one choice of directions and cases of a track; the page switches between."""

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
        """Whether the choice is one direction of one case, so that there is one time to show."""
        return len(self.track.cells) == 1

    @cached_property
    def columns(self) -> list[Column]:
        """The columns of the table."""
        unfit = "several" if self.single else "one"
        return [
            column
            for column in columns.COLUMNS
            if column.page and column.cases != unfit and column.known(self.track)
            if self.shown.timed or not column.timed
        ]

    def place(self, entry: Entry) -> str:
        """Return the place, such as `2`, `2=` of several that tie, or a dash."""
        if not (entry.rank and self.shown.timed):
            return "–"
        return f"{entry.rank}{'=' * (self._tied[entry.rank] > 1)}"

    @cached_property
    def _tied(self) -> Counter[int | None]:
        return Counter(entry.rank for entry in self.track.entries)


def rankings(
    shown: Shown, section: Section, track: Track, about: Mapping[str, About]
) -> Iterator[Ranking]:
    """Yield the ranking of each choice of the track that has a row; the whole track is first.

    >>> [(each.direction, each.case) for each in rankings(shown, section, track, about)]
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
    """Return every solution's speeds over the runs that timed all the track's cells."""
    found: dict[tuple[str, str], dict[Cell, Record | Past]] = defaultdict(dict)
    cells = set(track.cells)
    lines: Iterable[Record | Past] = chain(results.past, results.rows)
    for line in lines:
        if line.op == track.op and line.tier == "board" and (line.case, line.direction) in cells:
            found[line.solution, line.run][line.case, line.direction] = line
    points: dict[str, list[Point]] = defaultdict(list)
    for (solution, run), rows in found.items():
        times = [pair for row in rows.values() if (pair := _times(row))]
        when = moment(results.names.get(run, ""))
        if len(times) == len(cells) and when:
            first = next(iter(rows.values()))
            sources = first.sources if isinstance(first, Record) else ""
            points[solution].append(Point(run, when, combined(times), sources))
    return {name: sorted(each, key=lambda point: point.when) for name, each in points.items()}


def _times(row: Record | Past) -> TimePair | None:
    if row.verdict != "PASSED":
        return None
    if isinstance(row, Record):
        summaries = ranked_times(row)
        return (summaries["solution"], summaries["eager"]) if summaries else None
    if row.time is None or row.eager is None:
        return None
    return row.time, Summary(row.eager, row.eager, row.eager)
