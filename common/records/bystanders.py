"""The other files of a device's folder, guarded while a run is written."""

from __future__ import annotations

import zlib
from pathlib import Path

from common.errors import UserError
from common.records import jsonl

ASIDE = ".unexpected"


class Bystanders:
    """The records of earlier runs, which solutions could change, and no new ones beside them.

    A changed or removed file is put back. A file that appears is renamed to `<name>.unexpected`,
    which no board reads: it may be the user's own.
    """

    def __init__(self, run: Path) -> None:
        """Keep the files' content; those of the run itself are left out."""
        self._run = run
        self._kept = {
            path: (jsonl.stamp(path), zlib.compress(path.read_bytes(), 1)) for path in self._found()
        }

    def check(self) -> None:
        """Compare the files.

        Raises:
            UserError: A file was changed, removed or added.
        """
        if changed := self.put_back():
            name = f"{self._run.parent.name}/{changed[0]}"
            raise UserError(f"{name} was changed during the run: changed back; run it again")

    def put_back(self) -> list[str]:
        """Undo the changes, and return the names of the files."""
        added = [path for path in self._found() if path not in self._kept]
        for path in added:
            path.rename(path.with_name(path.name + ASIDE))
        changed = [path for path, (left, _) in self._kept.items() if jsonl.stamp(path) != left]
        for path in changed:
            content = self._kept[path][1]
            jsonl.put_back(path, zlib.decompress(content))
            self._kept[path] = jsonl.stamp(path), content
        return [path.name for path in (*changed, *added)]

    def _found(self) -> list[Path]:
        return [
            path
            for path in sorted(self._run.parent.glob("*.jsonl*"))
            if not path.name.startswith(self._run.stem) and path.suffix != ASIDE
        ]
