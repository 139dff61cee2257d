"""Stations whose process is a script, and whose lines come by a clock of the test's own."""

import math
import sys

import pytest

from common.engines.process import Process
from common.engines.units import encode
from tests.support.stations import JOB, Station

SCRIPT = """#!/bin/bash
read -r job <&$3
echo '{ready}' >&$3
read -r unit <&$3 || exit
{then}
"""
NEVER = math.inf


class Lines:
    """A station's lines once it has started, each as if it came after so many seconds."""

    def __init__(self, control, pause):
        self.control, self.pause, self.lines = control, pause, control.makefile("rb")

    def readline(self):
        limit = self.control.gettimeout()
        assert limit is not None, "it may wait for ever"
        if self.pause > limit:
            raise TimeoutError
        return self.lines.readline()


class Scripted(Process):
    """A station, and the seconds before each line that it says of a unit."""

    def __init__(self, pause):
        super().__init__("a", JOB)
        self.pause = pause

    def start(self):
        ready = super().start()
        self._lines = Lines(self._control, self.pause)
        return ready


@pytest.fixture
def scripted(tmp_path, monkeypatch):
    """A function that makes a station whose process does what it is told once it has a unit."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    made = []

    def make(then, pause):
        ready = encode(Station("a").start()).decode().strip()
        (tmp_path / "python").write_text(SCRIPT.format(ready=ready, then=then))
        (tmp_path / "python").chmod(0o700)
        made.append(Scripted(pause))
        return made[-1]

    yield make
    for each in made:
        each._kill()  # it would be given time to end by itself
        each.close()
