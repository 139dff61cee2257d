"""Fixtures of the engines' tests, which tests/support/ defines: here no test has to import them."""

from tests.support.fake_ray import begun
from tests.support.jobs import expected, folder
from tests.support.nodes import copies, unpacked
from tests.support.scripted import scripted
from tests.support.verdict_files import target

__all__ = ["begun", "copies", "expected", "folder", "scripted", "target", "unpacked"]
