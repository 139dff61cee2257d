"""The other files of a device's folder, guarded while a run is written."""

from __future__ import annotations

import zlib
from collections.abc import Container
from pathlib import Path

from common.errors import UserError
from common.records import jsonl

ASIDE = ".unexpected"


class Bystanders:
    """The records of earlier runs, which solutions could change, and no new ones beside them.

    A changed or removed file is put back. A file that appears is renamed to `<name>.unexpected`,
    which no board reads: it may be the user's own.
    """

    def __init__(self, folder: Path, own: Container[Path]) -> None:
        """Keep the content of the folder's files, less the run's own."""
        self._folder, self._own = folder, own
        self._kept = {
            path: (jsonl.stamp(path), zlib.compress(path.read_bytes(), 1)) for path in self._found()
        }

    def check(self) -> None:
        """Compare the files.

        Raises:
            UserError: A file was changed, removed or added.
        """
        if undone := self.put_back():
            raise UserError(f"{'; '.join(undone)}; run it again")

    def put_back(self) -> list[str]:
        """Undo the changes, and return a phrase about each."""
        return [*map(self._put_aside, self._added()), *map(self._put_back, self._changed())]

    def _added(self) -> list[Path]:
        return [path for path in self._found() if path not in self._kept]

    def _changed(self) -> list[Path]:
        """Return the files with other content; another time or inode alone is no change."""
        touched = [path for path, (left, _) in self._kept.items() if jsonl.stamp(path) != left]
        return [path for path in touched if jsonl.read_bytes(path) != self._content(path)]

    def _put_aside(self, path: Path) -> str:
        aside = path.rename(path.with_name(path.name + ASIDE))
        return f"{path.name} appeared during the run: renamed to {aside.name}"

    def _put_back(self, path: Path) -> str:
        jsonl.put_back(path, self._content(path))
        self._kept[path] = jsonl.stamp(path), self._kept[path][1]
        return f"{path.name} was changed during the run: changed back"

    def _content(self, path: Path) -> bytes:
        return zlib.decompress(self._kept[path][1])

    def _found(self) -> list[Path]:
        found = sorted(self._folder.glob("*.jsonl*"))
        return [path for path in found if path not in self._own and path.suffix != ASIDE]
