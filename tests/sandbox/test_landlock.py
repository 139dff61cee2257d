"""What a solution may write to, by the paths alone: this test needs no Landlock."""

import tempfile
from pathlib import Path

from common.sandbox import landlock


def test_a_neighbour_and_the_caches_are_writable_and_the_repository_is_not(tmp_path, monkeypatch):
    for name in (*landlock.CACHES, "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    root = tmp_path / "home" / "study"
    for folder in (root / "results" / "cpu", root / "common", root.parent / "neighbour"):
        folder.mkdir(parents=True)
    monkeypatch.setattr(landlock, "ROOT", root)
    temporary, *others = landlock.writable_paths()
    assert temporary == Path(tempfile.gettempdir()), "wherever the repository lies"
    assert not [path for path in others if path.is_relative_to(root) or root.is_relative_to(path)]
    assert root.parent / "neighbour" in others and Path("/usr") in others
    for name in (".cache", ".nv", ".triton"):
        assert (root.parent / name).is_dir()
        assert root.parent / name in others
