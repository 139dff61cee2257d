"""What a solution may write to, by the paths alone: these tests need no Landlock."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from common.sandbox import landlock

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def no_caches(monkeypatch, tmp_path):
    """Nothing of this machine's settings is among the paths, and no cache is made."""
    for name in (*landlock.CACHES, "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def writable() -> list[Path]:
    """All but the folder of temporary files, which is open wherever the repository lies."""
    temporary, *others = landlock.writable_paths()
    assert temporary == Path(tempfile.gettempdir())
    return others


def opens(path: Path, folder: Path) -> bool:
    """Does leave to write to `path` open anything in `folder`?"""
    return path.is_relative_to(folder) or folder.is_relative_to(path)


def test_all_beside_the_repository_and_its_parents_is_writable():
    inners = {REPOSITORY, *REPOSITORY.parents[:-1]}
    beside = {path for inner in inners for path in inner.parent.iterdir()} - inners
    found = set(writable())
    left = {path for path in beside if os.path.lexists(path)}  # other tests make files, and end
    assert left <= found


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A repository of another place, with results and a neighbour."""
    root = tmp_path / "home" / "study"
    for folder in (root / "results" / "cpu", root / "common", root.parent / "neighbour"):
        folder.mkdir(parents=True)
    monkeypatch.setattr(landlock, "ROOT", root)
    return root


def test_a_neighbour_and_the_caches_are_writable_and_the_results_are_not(tree):
    found = writable()
    assert tree.parent / "neighbour" in found
    assert not [path for path in found if opens(path, tree)]
    for name in (".cache", ".nv", ".triton"):
        assert (tree.parent / name).is_dir()
        assert tree.parent / name in found
