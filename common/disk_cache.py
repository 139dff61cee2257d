"""What an earlier run found, kept in `.cache/` while nothing that it rests on changes.

Each kind of finding has a folder: `verdicts` the faults of kernels, `counted` the work of cases,
`figures` those of compiled kernels, `page` highlighted sources, `failed` names of cases,
`exercises` verdicts of smoke cases, `hints` those that were given. Triton's own cache, `kernels`,
lies beside them, so that after an edit only what changed is compiled.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

from common import files
from common.digest import digest
from common.paths import CACHE, COMMON

PACKAGES = ("torch", "triton", "numpy", "pygments")
"""Those whose version a finding may rest on, as far as they are installed."""
LARGEST = 256 << 20
"""Bytes of each folder, beyond which its oldest entries go."""


class DiskCache:
    """Findings by name, in a file: of one solution by case, say."""

    def __init__(self, kind: str, name: str, rests_on: Callable[[], str]) -> None:
        """Read the file, if what its findings rest on is as it was.

        Args:
            kind: The kind of finding.
            name: The name of the findings among those of the kind, such as a solution's.
            rests_on: Return all that the findings rest on beside the harness and the packages.
        """
        self._path = CACHE / kind / f"{name.replace('/', '-')}.json"
        self._rests_on = rests_on
        self._key = self._current()
        self.found: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # another program's
            kept = json.loads(self._path.read_text())
            self.found = kept["found"] if kept["key"] == self._key else {}

    def save(self) -> None:
        """Write what is found, unless something that it rests on was saved meanwhile.

        Where the file cannot be written, the next run finds it again, and a line says why.
        """
        if not self.found or self._current() != self._key:
            return
        text = json.dumps({"key": self._key, "found": self.found})
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            files.replace(self._path, text.encode())
        except OSError as error:
            _complain(error.strerror or str(error))

    def _current(self) -> str:
        return f"{foundation()} {self._rests_on()}"


@functools.cache
def foundation() -> str:
    """Return the digest of the harness, and the versions of the packages."""
    versions = []
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append(f"{name} {metadata.version(name)}")
    return " ".join([digest(COMMON.rglob("*.py"), words=True), *versions])


@functools.cache
def _complain(reason: str) -> None:
    """Say once why nothing is kept."""
    print(f"study: {CACHE}: {reason}: what is found is not kept for the next run", file=sys.stderr)


def bound(largest: int = LARGEST) -> None:
    """Remove the oldest entries of each folder of the cache, until it holds no more bytes."""
    for folder in CACHE.glob("*/"):
        entries = []
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):  # another run removes it
                taken = sum(file.stat().st_size for file in (entry, *entry.rglob("*")))
                entries.append((entry.stat().st_mtime, taken, entry))
        total = 0
        for _, taken, entry in sorted(entries, reverse=True):
            total += taken
            if total > largest and entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)  # another run removes it too
            elif total > largest:
                entry.unlink(missing_ok=True)
