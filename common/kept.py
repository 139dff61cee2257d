"""Findings of an earlier run, kept in `.cache/` while nothing that they rest on changes."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from common import files
from common.digest import digest_with_words
from common.paths import CACHE, COMMON


class Kept:
    """Findings by name, in a file: of one solution by case, say."""

    def __init__(self, path: Path, name: str, rests_on: Callable[[], str]) -> None:
        """Read the file, if what its findings rest on is as it was.

        Args:
            path: The file.
            name: The name of the findings in the file.
            rests_on: Return all that the findings rest on, as a text.
        """
        self._path, self._name, self._rests_on = path, name, rests_on
        self._key = rests_on()
        self.found: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # another program's
            kept = json.loads(path.read_text())
            self.found = kept[name] if kept["key"] == self._key else {}

    def save(self) -> None:
        """Write what is found, unless something that it rests on was saved meanwhile.

        Where the file cannot be written, the next run finds it again, and a line says why.
        """
        if not self.found or self._rests_on() != self._key:
            return
        text = json.dumps({"key": self._key, self._name: self.found})
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            files.replace(self._path, text.encode())
        except OSError as error:
            _complain(error.strerror or str(error))


@functools.cache
def _complain(reason: str) -> None:
    """Say once why nothing is kept."""
    print(f"study: {CACHE}: {reason}: what is found is not kept for the next run", file=sys.stderr)


@functools.cache
def foundation(folders: Sequence[str], packages: Sequence[str]) -> str:
    """Return the digest of some folders of `common/`, and the versions of packages."""
    sources = (file for folder in folders for file in (COMMON / folder).rglob("*.py"))
    return " ".join(
        [digest_with_words(sources), *(f"{name} {metadata.version(name)}" for name in packages)]
    )
