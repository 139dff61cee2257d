"""What is known of kernels that were compiled, kept from run to run in `.cache/`.

A solution's faults stand under its sources and all that its calls rest on. Triton's own cache of
these compilations lies beside them, so that after an edit only what changed is compiled.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from common import kept
from common.kept import Kept
from common.paths import CACHE
from common.solutions import Solution
from common.spec import Direction

LARGEST = 256 << 20
"""Bytes of each folder of the cache, beyond which its oldest entries go."""

Faults = Mapping[Direction, str]
"""By direction, the reason for which a kernel does not compile."""


def known(solution: Solution, target: str) -> Kept:
    """Return the faults of one solution by case, as far as an earlier run found them."""
    path = CACHE / "verdicts" / f"{solution.name.replace('/', '-')}.json"
    return Kept(path, "faults", lambda: f"{target} {solution.digest} {foundation()}")


def foundation() -> str:
    """Return what faults rest on beside the solution: ops, the processes' code, and versions."""
    return kept.foundation(("ops", "sandbox", "grading", "tools"), ("torch", "triton"))


def bound(largest: int = LARGEST) -> None:
    """Remove the oldest entries of each folder of the cache, until it holds no more bytes."""
    for folder in CACHE.glob("*/"):
        taken = 0
        for _, size, entry in sorted(_entries(folder), reverse=True):
            taken += size
            if taken > largest:
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)  # another run removes it too
                else:
                    entry.unlink(missing_ok=True)


def _entries(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """Yield each entry with the time of its latest change and its bytes."""
    for entry in folder.iterdir():
        with contextlib.suppress(OSError):  # another run removes it
            files = [entry, *entry.rglob("*")]
            yield entry.stat().st_mtime, sum(file.stat().st_size for file in files), entry
