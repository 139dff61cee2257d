"""A session installs its groups once, and again when they or the packages have changed."""

import importlib
import sys
from unittest.mock import MagicMock

import pytest


def test_a_group_is_installed_until_it_is_complete_and_after_a_change(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nox", MagicMock())  # the tests' environment has no nox
    noxfile = importlib.import_module("noxfile")
    monkeypatch.delitem(sys.modules, "noxfile")
    monkeypatch.chdir(tmp_path)
    packages = tmp_path / ".nox" / "study" / "lib" / "python3.12" / "site-packages"
    packages.mkdir(parents=True)

    def installs(session, *group):
        noxfile.nox.project.dependency_groups.return_value = group
        noxfile.install(session, "test")
        return session.run_install.called

    with pytest.raises(KeyboardInterrupt):
        installs(MagicMock(**{"run_install.side_effect": KeyboardInterrupt}), "numpy")
    assert [installs(MagicMock(), "numpy") for _ in range(2)] == [True, False]
    assert [installs(MagicMock(), "numpy", "ray") for _ in range(2)] == [True, False]
    (packages / "ray-2.dist-info").mkdir()
    assert [installs(MagicMock(), "numpy", "ray") for _ in range(2)] == [True, False]
    (packages / "virtualenv.py").touch()  # which virtualenv writes again
    assert not installs(MagicMock(), "numpy", "ray")
