"""compute-sanitizer is run once for each tool, and what it counts decides; here a stand-in runs."""

from __future__ import annotations

import pytest

from common.sanitize import TOOLS, sanitize
from common.solutions import Fault


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """A compute-sanitizer that says what it is told to, and notes how it was called."""

    def make(says: str):
        path = tmp_path / "compute-sanitizer"
        path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\necho "{says}"\n')
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        return tmp_path / "calls"

    return make


@pytest.mark.parametrize(
    ("says", "clean"),
    [
        ("========= ERROR SUMMARY: 0 errors", True),
        ("========= ERROR SUMMARY: 0 errors\n========= ERROR SUMMARY: 3 errors", False),
        ("========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)", False),
    ],
)
def test_what_the_tools_count_decides(tool, says, clean, capfd):
    calls = tool(says)
    assert sanitize(["--only", "house"], 12) == clean
    lines = calls.read_text().splitlines()
    assert [line.split()[1] for line in lines] == list(TOOLS)
    assert all(line.endswith("--sample 12 --only house") for line in lines)
    assert "SUMMARY" in capfd.readouterr().out


def test_a_tool_that_says_nothing_is_a_fault(tool):
    tool("Segmentation fault")
    with pytest.raises(Fault, match="told of no result"):
        sanitize([], 1)


def test_no_tool_is_a_fault(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Fault, match="not on the path"):
        sanitize([], 1)
