"""Fixtures of the engines' tests, which tests/support/ defines: here no test has to import them."""

from tests.support.jobs import expected, folder

__all__ = ["expected", "folder"]
