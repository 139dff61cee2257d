"""The devices of boards as pure functions: sections, order, and speeds side by side."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from common.board.ranking import Entry, Track
from common.board.table import (
    STALE,
    UNRANKED,
    About,
    Table,
    named,
    op_order,
    stale,
    stale_note,
    tracks_by_op,
)
from common.records.lines import LeftOut, Record
from common.records.runs import Results


@dataclass(frozen=True)
class Section:
    """One op on one device."""

    op: str
    tracks: tuple[Track, ...]
    """The main track first; empty where every case is left out."""
    rows: tuple[Record, ...]
    left_out: tuple[str, ...]
    """A line for each case that does not fit the device."""


def sections(results: Results, known: Container[str]) -> list[Section]:
    """Return the ops of a device in the order of `OPS`, with the known solutions' latest rows."""
    rows = [row for row in results.latest() if row.solution in known]
    tracks = dict(tracks_by_op(rows))
    left_out = results.left_out()
    ops = sorted({*tracks, *(line.op for line in left_out)}, key=op_order)
    return [
        Section(
            op,
            tuple(tracks.get(op, ())),
            tuple(row for row in rows if row.op == op),
            tuple(lines_of(line for line in left_out if line.op == op)),
        )
        for op in ops
    ]


def lines_of(left_out: Iterable[LeftOut]) -> list[str]:
    """Return a line of text for each case that does not fit the device."""
    return [f"Left out on this device: {line.case} ({line.reason})." for line in left_out]


@dataclass(frozen=True)
class Device:
    """A device on a board: its records, and the sections from them."""

    results: Results
    sections: tuple[Section, ...]
    modelled: str = ""
    """The GPU whose modelled times replace missing measured times; empty with measured times."""

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
    def tracks(self) -> dict[tuple[str, str], Track]:
        """Return the tracks by op and name."""
        found = chain.from_iterable(section.tracks for section in self.sections)
        return {(track.op, track.name): track for track in found}


def devices(boards: Iterable[Results], about: Mapping[str, About]) -> list[Device]:
    """Return the devices in the order of `ordered`."""
    return [Device(results, tuple(sections(results, about))) for results in ordered(boards)]


def ordered(boards: Iterable[Results]) -> list[Results]:
    """Return the device with the newest full measurement first, and devices without times last."""
    return sorted(boards, key=newest, reverse=True)


def newest(results: Results) -> tuple[bool, int, str]:
    """Return a key that is greatest for the device with the newest full measurement.

    The key holds whether the device is timed, the number of ops that full runs cover, and the
    oldest op's latest full run by its file's name. A full run is finished and over all solutions.
    Measuring one op again does not make the other ops newer. A device with fewer ops has a smaller
    key.
    """
    full_runs = results.whole
    lines: Iterable[Record | LeftOut] = chain(results.rows, results.left_out_lines)
    measured = {
        (line.op, line.run) for line in lines if line.tier == "board" and line.run in full_runs
    }
    latest: dict[str, str] = {}
    for op, run in measured:
        latest[op] = max(latest.get(op, ""), results.names.get(run, ""))
    return results.timed, len(latest), min(latest.values(), default="")


def date(results: Results) -> str:
    """Return the day of the board's latest run, such as `2026-11-21`, or an empty string."""
    shown = {row.run for row in results.latest()}
    day = max((results.names.get(run, "") for run in shown), default="")[:8]
    return f"{day[:4]}-{day[4:6]}-{day[6:]}" if day.isdecimal() else ""


# --- side by side ---------------------------------------------------------------------------------


def side_by_side(found: Sequence[Device], about: Mapping[str, About]) -> list[Table]:
    """Return a table for each op and track: every solution's speed on each device.

    The rows are in the first device's order, followed by solutions that only later devices rank. A
    dash means that the device does not rank the solution.
    """
    by_device = {device.name: device.tracks for device in found}
    keys = dict.fromkeys(chain.from_iterable(by_device.values()))
    return [
        _side_by_side(key, {name: tracks.get(key) for name, tracks in by_device.items()}, about)
        for key in sorted(keys, key=lambda key: op_order(key[0]))
    ]


def _side_by_side(
    key: tuple[str, str], by_device: Mapping[str, Track | None], about: Mapping[str, About]
) -> Table:
    tracks = {device: track for device, track in by_device.items() if track}
    ranked = [_ranked(track) for track in by_device.values()]
    entries = [entry for by_name in ranked for entry in by_name.values()]
    owners = {entry.solution: entry for entry in entries}
    rows = tuple(
        (named(entry), *(_speed(by_name.get(name), about) for by_name in ranked))
        for name, entry in owners.items()
    )
    notes = (*stale_note(entries, about), *_cases(tracks), *_clocks(tracks))
    return Table(
        title=f"{key[0]}: {key[1]}, × eager",
        header=("solution", *by_device),
        rows=rows,
        footnotes=notes,
        owners=tuple(owners.values()),
    )


def _ranked(track: Track | None) -> dict[str, Entry]:
    return {entry.solution: entry for entry in track.entries if entry.score} if track else {}


def _speed(entry: Entry | None, about: Mapping[str, About]) -> str:
    if entry is None or entry.score is None:
        return UNRANKED
    # the mark stands before the number, so that the digits stay aligned
    return STALE * stale(entry, about) + f"{entry.score.value:.2f}"


def _cases(tracks: Mapping[str, Track]) -> list[str]:
    """Return a footnote for each device that lacks cases of another device."""
    all_cases = dict.fromkeys(case for track in tracks.values() for case, _ in track.cells)
    notes = []
    for device, track in tracks.items():
        lacking = [case for case in all_cases if case not in dict(track.cells)]
        if lacking:
            notes.append(f"missing cases: {', '.join(lacking)} on {device}")
    return notes


def _clocks(tracks: Mapping[str, Track]) -> list[str]:
    """Return a footnote where different versions of the clock measured the devices."""
    clocks = {device: track.clock for device, track in tracks.items() if track.clock}
    if len(set(clocks.values())) < 2:
        return []
    versions = ", ".join(f"{device} by {clock}" for device, clock in clocks.items())
    return [f"different versions of the clock measured the devices: {versions}"]
