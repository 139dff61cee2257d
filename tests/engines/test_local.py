"""Stations as processes, without a GPU: the verdicts of one process, whatever ends."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from common.engines import local, serving
from common.engines.engine import Fleet, Lost
from common.engines.local import Here
from common.engines.process import Process, share_cores
from common.engines.station import Station
from common.engines.units import SIZES, Sizes, Source, Unit
from common.errors import UserError
from common.grading import worker
from common.measure.rows import Measured
from common.paths import ROOT
from tests.support import forked
from tests.support.jobs import job_in, verdicts
from tests.support.processes import alive
from tests.support.records import row
from tests.support.stations import JOB
from tests.support.study import HIDE, RIGHT
from tests.support.waiting import LONGEST, wait_until


def children(pid):
    """The processes that a process started, and those of these."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    own = [int(child) for task in tasks for child in text(task).split()]
    return own + [each for child in own for each in children(child)]


def named(pids, word):
    return [pid for pid in pids if word in text(Path(f"/proc/{pid}/cmdline"))]


def text(path):
    """What the kernel says of a process, which may have ended meanwhile."""
    try:
        return path.read_text()
    except OSError:
        return ""


@pytest.mark.slow
def test_two_stations_find_the_same_and_a_killed_one_is_replaced(folder, expected, monkeypatch):
    """It is killed when it has been told its first unit."""
    monkeypatch.setitem(SIZES, "grade", Sizes(3, 3))
    send, killed = Process._send, []

    def kill(station, message):
        send(station, message)
        if isinstance(message, Unit) and not killed:
            killed.append(message)
            os.kill(station._process.pid, signal.SIGKILL)

    monkeypatch.setattr(Process, "_send", kill)
    found, lines = verdicts(local.engine(job_in(folder), [], stations=2))
    assert found == expected
    assert len(lines) == 1 and lines[0].endswith("was lost: its process ended by signal 9")
    assert not named(children(os.getpid()), "common.engines.serving"), "all have ended"


ASLEEP = worker.LONGEST
"""Seconds for which a solution keeps a station that waits for its answer."""


def drive(folder):
    """Grade with one station, in a process that is killed meanwhile."""
    asleep = RIGHT.replace("    x1, x2", f"    import time; time.sleep({ASLEEP})\n    x1, x2")
    verdicts(local.engine(job_in(folder, (asleep, asleep), sample=None), [], stations=1))


@pytest.mark.slow
def test_stations_end_with_their_driver(tmp_path):
    """At once: they do not wait for an answer that nobody hears."""
    driver = forked.CONTEXT.Process(target=drive, args=(tmp_path,))
    driver.start()
    # the station, and behind it base, fork server and a worker
    assert wait_until(lambda: len(children(driver.pid)) >= 4)
    family = children(driver.pid)
    assert named(family, "common.engines.serving")
    driver.kill()
    driver.join()
    assert wait_until(lambda: not any(map(alive, family)), ASLEEP / 2)


@pytest.mark.slow
def test_a_job_that_no_station_can_do_is_one_line(folder):
    job = job_in(folder, tier="matrix")
    with pytest.raises(UserError, match=r"station 0 takes no part: tier matrix needs a GPU"):
        verdicts(Fleet(job, [Process("station 0", job)]))


@pytest.mark.slow
def test_an_exception_of_the_harness_is_no_solutions_and_is_told_whole(folder):
    job = job_in(folder)
    unknown = Unit(op="rotate_half", cases=("no such case",), solutions=("alice/rotate_half",))
    told = r"the harness failed on a device:\nTraceback[^$]*KeyError"
    with Fleet(job, [Process("s", job)]) as fleet, pytest.raises(RuntimeError, match=told):
        list(fleet.run({"cpu": [unknown]}))


def test_a_station_without_a_package_is_one_line(folder, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(HIDE)
    hidden = {"PYTHONPATH": str(tmp_path), "HIDDEN": "triton"}
    with pytest.raises(UserError, match=r"s takes no part: it lacks the package triton: install"):
        Fleet(JOB, [Process("s", JOB, environment=hidden)]).__enter__()


def test_a_station_needs_the_packages_of_the_jobs_peers(folder):
    job = job_in(folder, sources=(Source("common/peers/quack/rope.py", "rope"),))
    assert serving._peers(job) == ["quack"]
    assert serving._peers(job_in(folder)) == []


def test_a_station_without_a_gpu_is_one_line(folder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="torch finds no GPU"):
        Station(job_in(folder, device="cuda"))


def test_a_station_whose_driver_was_interrupted_at_once_ends_without_a_word():
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "common.engines.serving", str(theirs.fileno())]
    with theirs:
        started = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()],
                                   stderr=subprocess.PIPE)  # fmt: skip
    ours.close()
    assert started.communicate(timeout=LONGEST) == (None, b"")
    assert started.returncode == serving.BUSY


def test_a_row_tells_its_node_and_device():
    place = SimpleNamespace(node="n1", uuid="GPU-a")
    found = Station._rows(SimpleNamespace(place=place), [Measured(row(), None, None)])
    assert [(each.node, each.device) for each in found.rows] == [("n1", "GPU-a")]


def test_a_station_keeps_to_its_cores(monkeypatch):
    kept = {}
    monkeypatch.setattr(sys, "executable", "/bin/true")
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: kept.update({pid: cores}))
    station = Process("s", JOB, cores=[3, 4])
    with pytest.raises(Lost, match="exit code 0"):
        station.start()
    assert kept == {station._process.pid: [3, 4]}


def test_stations_have_cores_of_their_own():
    assert share_cores(range(8), 2) == [range(4), range(4, 8)]
    assert share_cores(range(9), 2) == [range(4), range(4, 8)]
    assert share_cores([0, 2, 4, 6], 4) == [[0, 2, 4, 6]] * 4, "too few to be parted"


def test_a_gpu_has_a_station_and_without_one_this_process_is_it(folder):
    job = job_in(folder)
    assert isinstance(local.engine(job, []), Here)
    fleet = local.engine(job, ["3", "GPU-1a"])
    assert [each.name for each in fleet._stations] == ["GPU 3", "GPU GPU-1a"]
    assert [each._environment for each in fleet._stations] == [
        {"CUDA_VISIBLE_DEVICES": "3"}, {"CUDA_VISIBLE_DEVICES": "GPU-1a"},
    ]  # fmt: skip


def test_one_device_yields_each_answer_as_it_comes():
    """A kill then loses the answers under way alone, not those of a whole op."""
    answers = iter(["first", "second"])
    engine = Here(JOB)
    engine._station = SimpleNamespace(
        run=lambda units: answers, finished=lambda: SimpleNamespace(memory={})
    )
    found = engine.run({"cpu": []})
    assert next(found) == ("cpu", ["first"])
    assert next(answers) == "second"
