"""A stand-in for Ray that starts nothing."""

from types import SimpleNamespace

import pytest

from common.engines import cluster
from common.engines.cluster import LOOPBACK


@pytest.fixture
def begun(monkeypatch):
    """What Ray is started with, in place of Ray."""
    asked = {}
    fake = SimpleNamespace(init=lambda **how: asked.update(how))
    monkeypatch.setattr(cluster, "ray", lambda: fake)
    for name in (LOOPBACK, *cluster.QUICK):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return asked
