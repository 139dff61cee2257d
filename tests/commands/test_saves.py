"""The saves of a contributor's folder, which `check --watch` waits for."""

from __future__ import annotations

import queue
import threading
import time

import pytest

from common.commands import watch


@pytest.fixture
def saved(tmp_path):
    """The saves of a folder, as they come."""
    folder, end, found = tmp_path / "alice", threading.Event(), queue.SimpleQueue()
    folder.mkdir()

    def listen():
        for several in watch.saves(folder, end):
            found.put({path.name for path in several})

    thread = threading.Thread(target=listen)
    thread.start()
    time.sleep(0.5)
    yield folder, lambda: found.get(timeout=10), found
    end.set()
    thread.join(10)
    assert not thread.is_alive()


def test_solutions_helpers_and_configurations_are_watched(saved):
    folder, take, found = saved
    (folder / "rope.py").write_text("1")
    assert take() == {"rope.py"}
    (folder / "configs").mkdir()
    time.sleep(0.2)
    (folder / "configs" / "gpu.json").write_text("{}")
    assert take() == {"gpu.json"}
    (folder / "rope.py").unlink()
    assert take() == {"rope.py"}
    (folder / "README.md").write_text("what I try")
    (folder.parent / "bob.py").write_text("of another folder")
    (folder / ".#rope.py").symlink_to("alice@host.1234:1700000000")  # Emacs's lock
    (folder / "rope.py").write_text("2")
    assert take() == {"rope.py"} and found.empty()


def test_a_folder_may_be_deleted_and_made_again(saved):
    folder, take, _ = saved
    folder.rmdir()
    time.sleep(0.2)
    folder.mkdir()
    time.sleep(0.2)
    (folder / "rope.py").write_text("1")
    assert take() == {"rope.py"}
