"""A node's folders: where Ray unpacks the project, and where its copies lie."""

import tempfile

import pytest

from common.engines import node


@pytest.fixture
def copies(tmp_path, monkeypatch):
    """The folder of the copies, with the folder of temporary files beside it."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv(node.VARIABLE, raising=False)
    (tmp_path / "home").mkdir()
    return tmp_path / "home" / node.FOLDER


@pytest.fixture
def unpacked(copies, tmp_path):
    """The project as Ray unpacks it."""
    root = tmp_path / "tmp" / "ray" / "package"
    (root / "common").mkdir(parents=True)
    (root / "common" / "a.py").write_text("a = 1\n")
    return root
