"""A node's copy of the project lies where no solution may write."""

import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from common.engines import node
from common.errors import UserError
from common.sandbox import landlock


def writable(root, monkeypatch):
    """Whether a solution may write to a repository there."""
    monkeypatch.setattr(landlock, "ROOT", root)
    allowed = [each for each in landlock.writable_paths() if not each.is_symlink()]
    return any(root.is_relative_to(each) for each in allowed)


def test_a_solution_may_write_where_ray_unpacks_and_not_to_the_copy(unpacked, copies, monkeypatch):
    settled = node.settle(unpacked)
    assert settled.is_relative_to(copies)
    assert (settled / "common" / "a.py").read_text() == "a = 1\n"
    assert writable(unpacked, monkeypatch)
    assert not writable(settled, monkeypatch)


def test_a_copy_is_made_once_and_again_where_it_was_changed(unpacked, copies):
    settled = node.settle(unpacked)
    before = (settled / "common").stat().st_ino
    assert node.settle(unpacked) == settled
    assert (settled / "common").stat().st_ino == before
    (settled / "common" / "a.py").write_text("a = 2\n")
    assert node.settle(unpacked) == settled
    assert (settled / "common" / "a.py").read_text() == "a = 1\n"
    (settled / "common" / "__pycache__").mkdir()
    assert node.settle(unpacked) == settled
    assert not (settled / "common" / "__pycache__").exists(), "Python would prefer it to a source"
    (unpacked / "common" / "a.py").write_text("a = 3\n")
    assert node.settle(unpacked) != settled


def test_a_copy_that_nobody_has_used_for_a_month_is_removed(unpacked, copies):
    first = node.settle(unpacked)
    (unpacked / "common" / "a.py").write_text("a = 2\n")
    second = node.settle(unpacked)
    assert first.exists()
    long_ago = time.time() - node.UNUSED - 60
    for each in (first, second):
        os.utime(each.parent / "lock", (long_ago, long_ago))
    assert node.settle(unpacked) == second
    assert not first.parent.exists() and second.exists()
    used = (second.parent / "lock").stat().st_mtime
    assert used > long_ago + node.UNUSED, "just now"


@pytest.mark.parametrize("where", ["{tmp}/copies", "{home}/.cache/copies", "{cache}"])
def test_a_folder_where_solutions_may_write_is_refused(unpacked, tmp_path, monkeypatch, where):
    """Beneath a compiler's cache too."""
    cache = str(tmp_path / "cache")
    monkeypatch.setenv("TRITON_CACHE_DIR", cache)
    found = where.format(tmp=tempfile.gettempdir(), home=Path.home(), cache=cache)
    monkeypatch.setenv(node.VARIABLE, found)
    with pytest.raises(UserError, match="lies where solutions may write: set STUDY_NODE_FOLDER"):
        node.settle(unpacked)


def test_a_copy_that_cannot_be_made_is_one_line(unpacked, copies, monkeypatch):
    copies.write_text("a file in its place")
    with pytest.raises(UserError, match="Not a directory: make room there, or set STUDY_NODE"):
        node.settle(unpacked)
    copies.unlink()

    def full(source, target, **_):
        raise shutil.Error([(source, target, "[Errno 28] No space left on device")])

    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(UserError, match=r"No space left on device: make room there"):
        node.settle(unpacked)
