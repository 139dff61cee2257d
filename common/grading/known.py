"""What is known of kernels that were compiled, kept from run to run in `.cache/`.

A solution's faults stand under its sources and all that its calls rest on. Triton's own cache of
these compilations lies beside them, so that after an edit only what changed is compiled.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from common.digest import digest
from common.paths import CACHE, COMMON
from common.solutions import Solution
from common.spec import Direction

LARGEST = 256 << 20
"""Bytes of each folder of the cache, beyond which its oldest entries go."""

Faults = Mapping[Direction, str]
"""By direction, the reason for which a kernel does not compile."""


class Known:
    """The faults of one solution by case, in a file of the cache."""

    def __init__(self, solution: Solution, target: str) -> None:
        """Read what earlier runs found, if nothing changed that it rests on."""
        handle, file = solution.name.split("/")
        self._path = CACHE / "verdicts" / f"{handle}-{file}.json"
        self._solution, self._target = solution, target
        self._key = self._present()
        self.faults: dict[str, Faults] = {}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # another program's
            kept = json.loads(self._path.read_text())
            self.faults = kept["faults"] if kept["key"] == self._key else {}

    def save(self) -> None:
        """Write what is known, unless the solution was saved meanwhile."""
        if not self.faults or self._present() != self._key:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        written = Path(f"{self._path}.{os.getpid()}")
        written.write_text(json.dumps({"key": self._key, "faults": self.faults}))
        written.replace(self._path)

    def _present(self) -> str:
        return f"{self._target} {self._solution.digest} {foundation()}"


@functools.cache
def foundation() -> str:
    """Return what faults rest on beside the solution: ops, the processes' code, and versions."""
    folders = [COMMON / name for name in ("ops", "sandbox", "grading", "tools")]
    sources: Iterable[Path] = (file for folder in folders for file in folder.rglob("*.py"))
    versions = [f"{name} {metadata.version(name)}" for name in ("torch", "triton")]
    return " ".join([digest(sources), *versions])


def bound(largest: int = LARGEST) -> None:
    """Remove the oldest entries of each folder of the cache, until it holds no more bytes."""
    for folder in CACHE.glob("*/"):
        taken = 0
        for _, size, entry in sorted(_entries(folder), reverse=True):
            taken += size
            if taken > largest:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink(missing_ok=True)


def _entries(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """Yield each entry with the time of its latest change and its bytes."""
    for entry in folder.iterdir():
        with contextlib.suppress(OSError):  # another run removes it
            files = [entry, *entry.rglob("*")]
            yield entry.stat().st_mtime, sum(file.stat().st_size for file in files), entry
