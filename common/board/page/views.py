"""What the page's views show: the devices, and each solution with all that is known of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from common.board import compiled, modelled, work
from common.board.devices import Device, Section, devices
from common.board.model import DEFAULT, GPUS
from common.board.modelled import Key
from common.board.page import history, sources
from common.board.page.history import Histories, Point
from common.board.ranking import Entry, Track
from common.board.table import About, Table, place, stale
from common.records.lines import Compiled, Counted, Record
from common.records.runs import Results
from common.solutions import Solution


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
        return next((each for each in self.sections if each.op == op), None)

    def history(self, solution: Solution) -> dict[str, list[Point]]:
        """Return the solution's speeds over all runs, by track, where there are any."""
        tracks = self._histories.get(solution.op, {})
        return {name: each[solution.name] for name, each in tracks.items() if solution.name in each}

    @cached_property
    def _histories(self) -> dict[str, dict[str, Histories]]:
        """The speeds over all runs, by op, track and solution."""
        return {
            section.op: {
                track.name: history.histories(self.device.results, track)
                for track in section.tracks
            }
            for section in self.sections
        }


@dataclass(frozen=True)
class Standing:
    """A solution in one track of a device."""

    shown: Shown
    track: Track
    entry: Entry

    @property
    def rows(self) -> list[tuple[str, str, Record | None]]:
        """Each case and direction of the track, with the solution's row where it has one."""
        return [(*cell, self.entry.cells.get(cell)) for cell in self.track.cells]

    def late(self, row: Record) -> bool:
        """Return whether an earlier clock took the row's times, which are shown nowhere."""
        return self.track.row(self.entry, (row.case, row.direction)) is None


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
        about = {each.name: About(each.note, each.digest) for each in everyone}
        counts = modelled.latest(boards)
        stand_ins = [_stand_in(each) for each in boards]
        gpus = {each.path: gpu for each, gpu in stand_ins}
        found = devices([each for each, _ in stand_ins], about)
        shown = [Shown(device, gpus[device.results.path]) for device in found]
        known = {line.solution for each in shown for s in each.sections for line in s.rows}
        listed = sorted(
            (each for each in everyone if not each.peer or each.name in known),
            key=lambda each: (place(each.op), each.peer, each.name),
        )
        return cls(shown, listed, about, compilations, counts)

    @cached_property
    def ops(self) -> list[str]:
        """The ops that have a solution, in the order of boards."""
        return list(dict.fromkeys(each.op for each in self.solutions))

    @cached_property
    def names(self) -> list[str]:
        """Every solution's name."""
        return [each.name for each in self.solutions]

    def first(self, op: str) -> tuple[Shown, Track] | None:
        """Return the op's main track on the first device that has it."""
        found = ((shown, shown.section(op)) for shown in self.devices)
        return next(((shown, each.tracks[0]) for shown, each in found if each), None)

    def standings(self, solution: Solution) -> list[Standing]:
        """Return the solution's place in each track of each device that has a row of it."""
        return self._standings.get(solution.name, [])

    @cached_property
    def _standings(self) -> dict[str, list[Standing]]:
        found: dict[str, list[Standing]] = defaultdict(list)
        for shown in self.devices:
            for section in shown.sections:
                for track in section.tracks:
                    for entry in track.entries:
                        found[entry.solution].append(Standing(shown, track, entry))
        return found

    def stale(self, entry: Entry) -> bool:
        """Return whether the source in this tree is not the one that was measured."""
        return stale(entry, self.about)

    def kernels(self, solution: Solution) -> list[Table]:
        """Return what compilers made of the solution's kernels."""
        return compiled.tables(line for line in self.compiled if line.solution == solution.name)

    def recompiled(self, solution: Solution) -> bool:
        """Return whether the source has changed since its kernels were compiled."""
        digests = {line.sources for line in self.compiled if line.solution == solution.name}
        return bool(digests) and digests != {self.about[solution.name].digest}

    def work(self, solution: Solution) -> list[Table]:
        """Return the solution's counted work."""
        counts = [each for each in self.counts.values() if each.solution == solution.name]
        return work.tables(counts, self.about)

    def files(self) -> dict[str, Path]:
        """Return every file that belongs to a solution, as `handle/path` in its folder."""
        return {
            f"{solution.handle}/{name}": path
            for solution in self.solutions
            for name, path in sources.files(solution).items()
        }


def _stand_in(results: Results) -> tuple[Results, str]:
    """Return the results, with modelled times where nothing was timed but all was counted."""
    if results.timed or not results.counted:
        return results, ""
    gpu = GPUS[DEFAULT]
    return modelled.board(results, gpu), gpu.name
