"""Results of earlier runs, kept in `.cache/` until one of their dependencies changes.

Each kind of result has a folder: `verdicts` for faults of kernels, `counted` for the work of cases,
`page` for highlighted sources, `failed` for names of cases, `exercises` for verdicts of smoke
cases, and `hints` for the hints that were given. Triton's own cache is `.cache/kernels`, so that
after an edit only the changed kernels are compiled.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

from common import paths
from common.digest import digest
from common.paths import CACHE, COMMON
from common.printable import complain_once

OLDEST = 14 * 24 * 3600
"""The seconds after which an entry is removed."""


class DiskCache:
    """Results by name, in one file: for example, one solution's results by case."""

    def __init__(self, kind: str, name: str, rests_on: Callable[[], str]) -> None:
        """Read the file `name` in the folder `kind`; discard its results if a dependency changed.

        `rests_on` returns the dependencies other than the harness and the packages, as text.
        """
        self._path = CACHE / kind / f"{name.replace('/', '-')}.json"
        self._rests_on = rests_on
        self._key = self._current()
        self.found: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # of another format
            content = json.loads(self._path.read_text())
            self.found = content["found"] if content["key"] == self._key else {}

    def save(self) -> None:
        """Write the results, unless a dependency has changed or gone since the file was read.

        Where the file cannot be written, say so; the next run computes them again.
        """
        try:
            if self.found and self._current() == self._key:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                text = json.dumps({"key": self._key, "found": self.found})
                paths.replace(self._path, text.encode())
        except FileNotFoundError:  # a source is away
            pass
        except OSError as error:
            complain_once(f"{CACHE}: {error.strerror}: results are not kept for the next run")

    def _current(self) -> str:
        return f"{foundation()} {self._rests_on()}"


@functools.cache
def foundation() -> str:
    """Return the digest of the harness and the versions of the packages."""
    versions = (f"{name} {version}" for name, version in package_versions().items())
    return " ".join([digest(COMMON.rglob("*.py"), words=True), *versions])


def package_versions() -> dict[str, str]:
    """Return the versions of the installed packages on which every result may depend."""
    versions = {}
    for name in ("torch", "triton", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def trim_caches() -> None:
    """Remove entries that are older than OLDEST."""
    for entry in CACHE.glob("*/*"):
        with contextlib.suppress(OSError):  # another run removed it
            if time.time() - entry.stat().st_mtime > OLDEST:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
