"""Fixtures of the engines' tests, which tests/support/ defines: here no test has to import them."""

import pytest

from common import paths
from common.measure import machine
from tests.support.jobs import expected, folder

__all__ = ["expected", "folder"]


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    """Take back what a driver of tests/support/killed.py sets in its process, here the tests'."""
    monkeypatch.setattr(machine, "harness_digest", machine.harness_digest)
    monkeypatch.setattr(paths, "RESULTS", paths.RESULTS)
