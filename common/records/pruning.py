"""Raw samples and superseded rows, cut down to lines of history."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common import files
from common.records import jsonl, runs, writer
from common.records.lines import Anything, End, Past, Record


@dataclass
class Plan:
    """The changes to the files of one device."""

    folder: Path
    samples: list[Path] = field(default_factory=list)
    """Files to remove."""
    contents: dict[Path, bytes] = field(default_factory=dict)
    """The new content of each run's file that changes."""
    rows: int = 0
    """The rows that become lines of history."""
    freed: int = 0
    """Bytes."""

    def __str__(self) -> str:
        """Return the changes in words."""
        return (
            f"{self.folder.name}: remove {len(self.samples)} files of raw samples; shorten"
            f" {self.rows} superseded rows to a line of history each; frees {self.freed:,} bytes"
        )

    def carry_out(self) -> None:
        """Change the files, each whole or not at all.

        Raises:
            UserError: A run is writing to the folder.
        """
        with writer.locked(self.folder):
            for path, content in self.contents.items():
                files.replace(path, content)
            for path in self.samples:
                path.unlink()


def plan(folder: Path, needed: Container[tuple[str, ...]]) -> Plan:
    """Return the changes to the runs of a device that have ended.

    A row that is not needed becomes a line of history. A run without a row that is needed loses its
    raw samples too.

    Args:
        folder: The device's folder.
        needed: The ids of the rows to keep.
    """
    found = Plan(folder)
    files = runs.files(folder)
    for path in files:
        lines = runs.lines(path)
        under_way = path == files[-1] and not (lines and isinstance(lines[-1], End))
        if under_way or not lines:  # only the newest run can be continued
            continue
        rows = [line for line in lines if isinstance(line, Record)]
        dropped = [row for row in rows if row.id not in needed]
        if dropped:
            _cut_down(found, path, lines, needed)
        if len(dropped) == len(rows):
            _drop_samples(found, path)
    return found


def _cut_down(
    found: Plan, path: Path, lines: Sequence[Anything], needed: Container[tuple[str, ...]]
) -> None:
    """Plan to replace the rows that are not needed."""
    kept = [
        Past.of(line) if isinstance(line, Record) and line.id not in needed else line
        for line in lines
    ]
    content = jsonl.encoded(kept)
    found.rows += sum(isinstance(line, Past) for line in kept)
    found.rows -= sum(isinstance(line, Past) for line in lines)
    found.contents[path] = content
    found.freed += path.stat().st_size - len(content)


def _drop_samples(found: Plan, path: Path) -> None:
    """Plan to remove the run's raw samples, packed or left over by a kill."""
    for file in (writer.archive(path), writer.samples_file(path)):
        if file.exists():
            found.samples.append(file)
            found.freed += file.stat().st_size
