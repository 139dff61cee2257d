"""Lines on a narrow terminal."""

import sys

from common.printable import wrapped


def test_an_index_is_not_broken(monkeypatch):
    line = "feature 0 of 2; at [0, 0, 0, 0] expected 1, got -1"
    assert wrapped(line) == line, "no terminal"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "26")
    shown = ["  feature 0 of 2; at", "  [0, 0, 0, 0] expected 1,", "  got -1"]
    assert wrapped(line, "  ").splitlines() == shown
