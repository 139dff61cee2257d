"""A station that hangs is lost; one whose work goes on is not, however long a case takes."""

import signal
import socket
import threading

import pytest

from common import wire
from common.engines import process, serving, station
from common.engines.engine import Lost
from common.engines.units import Finished, Unit, decode_event, encode
from common.grading import worker
from common.grading.worker import DEADLINE
from tests.support.processes import answer
from tests.support.scripted import NEVER
from tests.support.stations import JOB, Station, all_of, swept, takes_first
from tests.support.waiting import LONGEST

HANGS = "exec sleep 600"
SILENT = f"it gave no sign of life for {process.LONGEST_SILENCE:g} s"
UNIT = Unit(op="rope", cases=("c0",), solutions=("ada/rope",))


def test_a_station_that_hangs_is_killed(scripted):
    hangs = scripted(HANGS, NEVER)
    hangs.start()
    with pytest.raises(Lost, match=SILENT):
        list(hangs.run(UNIT))
    assert hangs._process.returncode == -signal.SIGKILL


def test_the_cases_of_a_station_that_hangs_go_elsewhere(scripted, monkeypatch):
    takes_first(monkeypatch, "a")
    found, lines = swept([scripted(HANGS, NEVER), Station("b")])
    assert found == all_of(40)
    assert {*lines} == {f"a was lost: {SILENT}"}


def test_a_station_whose_work_goes_on_is_not_lost(scripted):
    finished = encode(Finished({"device": 7})).decode().strip()
    works = scripted(
        f"for i in 1 2 3 4 5; do echo >&$3; done; echo '{finished}' >&$3",
        pause=0.9 * process.LONGEST_SILENCE,
    )
    works.start()
    assert list(works.run(UNIT)) == [Finished({"device": 7})]


class Working:
    """A station with one request to a solution's process in each unit."""

    def __init__(self, job):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def ready(self):
        return Station("a").start()

    def run(self, units):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            threading.Thread(target=answer, args=[theirs]).start()
            worker.answer_of(ours, 0, wire.Settle(), LONGEST)
        return ()

    def finished(self):
        return Finished()


def test_a_station_whose_work_goes_on_says_so(monkeypatch):
    """It has no event to tell, and says an empty line."""
    monkeypatch.setattr(worker, "LISTENERS", [])
    monkeypatch.setattr(serving, "PULSE", 0.0)
    monkeypatch.setattr(serving._Driver, "_read", lambda _: None)  # it would end this process
    monkeypatch.setattr(station, "Station", Working)
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(encode(JOB))
        driver = serving._Driver(theirs)
        driver._units.put(encode(UNIT))
        driver._units.put(b"")
        serving.serve(driver)
        driver._lines.close()
    ready, empty, finished = ours.makefile("rb")
    assert decode_event(ready) == Station("a").start()
    assert empty == b"\n"
    assert decode_event(finished) == Finished()


def test_a_request_without_a_reply_is_a_sign_of_life_too(monkeypatch):
    """Several solutions in a row may hang, each until its deadline."""
    heard = []
    monkeypatch.setattr(worker, "LISTENERS", [lambda: heard.append(True)])
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(OSError, match="Broken pipe"):
        worker.answer_of(ours, 0, wire.Settle(), 1.0)
    assert heard


def test_the_limit_is_longer_than_any_request():
    """One may take as long to be sent as to be answered."""
    assert 2 * max(worker.LONGEST, 2 * max(DEADLINE.values())) < process.LONGEST_SILENCE
