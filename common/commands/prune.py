"""`study prune`: drops raw samples and superseded rows that no board or comparison shows."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from common import solutions
from common.board.comparison import compare
from common.errors import UserError
from common.records import runs, writer
from common.records.runs import End, Past, Record, Results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--yes`."""
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(options: argparse.Namespace) -> int:
    """Drop raw samples and superseded rows that no board, plot or comparison needs."""
    with_tree = {solution.name for solution in solutions.everyone(installed=False)}
    plans = [plan(results, with_tree) for results in runs.read_all()]
    if not any(plan.freed for plan in plans):
        print("study: there is nothing to prune")
        return 0
    for each in plans:
        print(*each.lines(), sep="\n")
    if not (options.yes or _agreed()):
        return 1
    for each in plans:
        each.carry_out()
    print(f"study: pruned; {sum(each.freed for each in plans):,} bytes are free")
    return 0


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise UserError("prune asks before it drops anything: run it in a terminal, or give --yes")
    return input("Drop them? [y/N] ").strip().lower() in ("y", "yes")


@dataclass
class Plan:
    """The changes to the files of one device."""

    folder: Path
    samples: list[Path] = field(default_factory=list)
    """Files to remove."""
    runs: dict[Path, bytes] = field(default_factory=dict)
    """The new content of the runs' files."""
    rows: int = 0
    """The rows that become lines of history."""
    freed: int = 0
    """Bytes."""

    def lines(self) -> list[str]:
        """Return what would be dropped, in words."""
        if not self.freed:
            return []
        samples = f"the raw samples of {len(self.samples)} runs"
        rows = f"{self.rows} superseded rows cut down to lines of history"
        return [f"{self.folder.name}: {samples}, and {rows}: {self.freed:,} bytes"]

    def carry_out(self) -> None:
        """Change the files, each whole or not at all.

        Raises:
            UserError: A run is writing to the folder.
        """
        with writer.locked(self.folder):
            for path, content in self.runs.items():
                writer.replace(path, content)
            for path in self.samples:
                path.unlink()


def plan(results: Results, known: Collection[str]) -> Plan:
    """Return the changes to a device's runs that have ended.

    A run whose rows are all superseded loses its raw samples; the runs stay as they are otherwise
    if nothing in them is superseded.

    Args:
        results: The device's records.
        known: The solutions of this tree, which a comparison shows.
    """
    found = Plan(results.path)
    needed = _needed(results, known)
    for path in runs.files(results.path):
        lines = runs.lines(path)
        if not lines or not isinstance(lines[-1], End):
            continue
        rows = [line for line in lines if isinstance(line, Record)]
        dropped = [row for row in rows if id_of(row) not in needed]
        if dropped:
            _cut_down(found, path, lines, needed)
        if len(dropped) == len(rows):
            _drop_samples(found, path)
    return found


def id_of(row: Record) -> tuple[str, ...]:
    """Return the fields that name a row among those of all runs."""
    return (row.run, row.tier, *row.key)


def _needed(results: Results, known: Collection[str]) -> set[tuple[str, ...]]:
    """Return the ids of the rows that a board, a plot or a comparison reads.

    A comparison leaves out solutions that are not in the tree, but one can come back: the runs are
    kept that it takes with them and without them.
    """
    shown = [*results.latest("board"), *results.latest("plot")]
    needed = {id_of(row) for row in shown}
    everyone = {row.solution for row in results.rows}
    compared = {
        (run.run, comparison.op)
        for names in (known, everyone)
        for comparison in compare(results, names)
        for run in (comparison.earlier, comparison.later)
    }
    return needed | {
        id_of(row) for row in results.rows if row.tier == "board" and (row.run, row.op) in compared
    }


def _cut_down(
    found: Plan, path: Path, lines: Iterable[runs.Anything], needed: Collection[tuple[str, ...]]
) -> None:
    """Plan to replace the rows that are not needed by lines of history."""
    kept: list[runs.Anything] = []
    for line in lines:
        if isinstance(line, Record) and id_of(line) not in needed:
            kept.append(Past.of(line))
            found.rows += 1
        else:
            kept.append(line)
    content = b"".join(msgspec.json.encode(line) + b"\n" for line in kept)
    found.runs[path] = content
    found.freed += path.stat().st_size - len(content)


def _drop_samples(found: Plan, path: Path) -> None:
    """Plan to remove the run's raw samples, packed or left over by a kill."""
    for file in (writer.archive(path), writer.samples_file(path)):
        if file.exists():
            found.samples.append(file)
            found.freed += file.stat().st_size
