"""Fixtures for the tests of compilation without a GPU; a plugin, which conftest.py names."""

from __future__ import annotations

import pytest

from common import disk_cache
from common.grading import compiling
from common.grading.compiling import TARGET, Compiler
from common.grading.fork_server import ForkServer


@pytest.fixture(scope="module")
def target():
    server = ForkServer("cpu", target=TARGET)
    yield server
    server.close()


@pytest.fixture
def compiler(target, monkeypatch, tmp_path):
    """Return a compiler whose server is this module's, and whose cache is empty."""
    monkeypatch.setattr(disk_cache, "CACHE", tmp_path)
    monkeypatch.setattr(compiling, "ForkServer", lambda *_, **how: target)
    monkeypatch.setattr(target, "close", lambda: None)
    return lambda device="cpu": Compiler(device)
