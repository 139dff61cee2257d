"""The boards of each device: the ranked tracks of its ops, and the order of devices."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from common import solutions
from common.board import modelled
from common.board.ranking import About, Track, rank
from common.board.table import AS_INSTALLED, TUNED
from common.paths import PEERS, ROOT
from common.records.lines import Record
from common.records.runs import Results

WHERE = "tuned where docs/peers.md says so"
"""What the note of a solution says whose library's own search is kept for some devices."""


@dataclass(frozen=True, eq=False)
class Device:
    """A device on a board: its records, and its ranked tracks."""

    results: Results
    about: Mapping[str, About]
    """The facts of the known solutions."""
    modelled: str = ""
    """The GPU whose modelled times replace missing measured times; empty with measured times."""

    @cached_property
    def rows(self) -> list[Record]:
        """The latest rows of the known solutions."""
        return [row for row in self.results.latest() if row.solution in self.about]

    @cached_property
    def tracks(self) -> dict[tuple[str, str], Track]:
        """The tracks by op and name, in the order of boards."""
        return {(track.op, track.name): track for track in self.ranked(self.rows)}

    def ranked(self, rows: Sequence[Record]) -> list[Track]:
        """Return the tracks of some of the latest rows."""
        return rank(rows, self.about, self.timed, self._repeated)

    @cached_property
    def _repeated(self) -> list[Record]:
        return self.results.repeated()

    @property
    def ops(self) -> dict[str, list[Track]]:
        """The tracks of each op, the main track first."""
        return {
            op: list(tracks) for op, tracks in groupby(self.tracks.values(), lambda track: track.op)
        }

    @property
    def mains(self) -> list[Track]:
        """The main track of each op."""
        return [tracks[0] for tracks in self.ops.values()]

    @property
    def timed(self) -> bool:
        """Whether its entries are ranked."""
        return self.results.timed or bool(self.modelled)

    @property
    def slug(self) -> str:
        """The name of the device's folder, which links use."""
        return self.results.path.name

    @property
    def name(self) -> str:
        """Return the driver's name of the device."""
        return self.results.runs[-1].device_name

    @property
    def versions(self) -> str:
        """Return the packages with their versions, and the machine: `torch 2.11.0 (here 2.13.0)`.

        Here is the version that pyproject.toml has, if it is another.
        """
        groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
        pins = (str(each).partition("==") for group in groups.values() for each in group)
        here = {name.partition("[")[0]: version for name, _, version in pins if version}
        texts = []
        for name, version in self.results.versions.items():
            other = here.get(name.replace("_", "-").removesuffix("-cu13"), version)
            texts.append(f"{name} {version}" + f" (here {other})" * (other != version))
        return ", ".join(texts)


def about_solutions(names: Container[str] | None = None) -> dict[str, About]:
    """Return the facts of the solutions of these names, or of all; digests of all take a second.

    Absent peers are included, since a record may come from another machine.
    """
    return {
        solution.name: About(solution.note, solution.digest)
        for solution in solutions.everyone(installed=False)
        if names is None or solution.name in names
    }


def tuned_on(results: Results, about: Mapping[str, About]) -> dict[str, About]:
    """Return the facts of solutions on a device: of a library with a search, whether it is tuned.

    A search is of a device and a version of the library, for the board's cases: `docs/peers.md`.
    """
    device, facts = results.runs[-1].device_name, dict(about)
    installed = {
        f"{name.replace('_', '-')} {version}" for name, version in results.versions.items()
    }
    for name in about:
        kept = PEERS / name.partition("/")[0] / "configs" / "tuned.json"
        if WHERE in about[name].note and kept.exists():
            here = json.loads(kept.read_text()).keys() & {f"{device}, {each}" for each in installed}
            note = about[name].note.replace(WHERE, TUNED if here else AS_INSTALLED)
            facts[name] = replace(about[name], note=note)
    return facts


def ranked(results: Results, about: Mapping[str, About]) -> Device:
    """Return the device; modelled times take the place of missing measured times."""
    timed, gpu = modelled.with_modelled_times(results)
    return Device(timed, about, gpu)
