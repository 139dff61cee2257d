"""The saves of a contributor's folder, which `check --watch` waits for."""

from __future__ import annotations

import queue
import threading

import pytest

from common.commands import watch
from tests.support.waiting import LONGEST, wait_until

AGAIN = 1.0
"""Seconds after which a file that was saved before its folder was watched is saved again."""


class Saved:
    """The files of a folder whose saves were seen, and waits for more of them."""

    def __init__(self, folder):
        self.folder, self.names, self.found = folder, set(), queue.SimpleQueue()

    def sees(self, name, text=None):
        """Whether a save of this file is seen; with a text it is written until one is."""

        def look():
            if text is not None:
                (self.folder / name).write_text(text)
            try:
                seen = {path.name for path in self.found.get(timeout=AGAIN)}
            except queue.Empty:
                return False
            self.names |= seen
            return (self.folder / name).name in seen

        return wait_until(look)


@pytest.fixture
def saved(tmp_path):
    """The saves of a folder with one file."""
    saved, end = Saved(tmp_path / "alice"), threading.Event()
    saved.folder.mkdir()
    (saved.folder / "old.py").write_text("0")

    def listen():
        for several in watch.saves(saved.folder, end):
            saved.found.put(several)

    thread = threading.Thread(target=listen)
    thread.start()
    yield saved
    end.set()
    thread.join(LONGEST)
    assert not thread.is_alive()


def test_solutions_helpers_and_configurations_are_watched(saved):
    folder = saved.folder
    assert saved.sees("rope.py", "1")
    (folder / "configs").mkdir()
    assert saved.sees("configs/gpu.json", "{}")
    (folder / "old.py").unlink()
    assert saved.sees("old.py")
    (folder / "README.md").write_text("what I try")
    (folder.parent / "bob.py").write_text("of another folder")
    (folder / ".#rope.py").symlink_to("alice@host.1234:1700000000")  # Emacs's lock
    assert saved.sees("last.py", "2")
    assert saved.names == {"rope.py", "gpu.json", "old.py", "last.py"}


def test_a_folder_may_be_deleted_and_made_again(saved):
    assert saved.sees("old.py", "1"), "it is watched"
    (saved.folder / "old.py").unlink()
    saved.folder.rmdir()
    saved.folder.mkdir()
    assert saved.sees("rope.py", "1")
