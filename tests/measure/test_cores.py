"""A process's time by the wall, on its cores and in wait for one; and the cores that it may use."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from common.measure import cores
from common.measure.cores import Elapsed, allowed, kept_on, look
from tests.support.processes import busy_child, state
from tests.support.waiting import wait_until


@pytest.fixture
def process():
    """Return a function that starts Python on some code."""
    started = []

    def start(code):
        code = f"print(flush=True)\n{code}"
        started.append(subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE))
        started[-1].stdout.readline()  # it is at work
        return started[-1].pid

    yield start
    for each in started:
        each.kill()
        each.communicate()


def test_a_process_that_sleeps_takes_no_processor_time(process, monkeypatch):
    pid = process("import time; time.sleep(600)")
    assert wait_until(lambda: state(pid) == "S")
    monkeypatch.setattr(cores, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    start = look(pid)
    time.sleep(0.1)
    asleep = look(pid).since(start)
    assert (asleep.wall, asleep.busy) == (1, pytest.approx(0, abs=0.01))


@pytest.mark.slow
def test_a_process_that_shares_its_core_waits_for_the_rest_of_the_time(process):
    """A wait counts once it has ended."""
    shared = [process("while True: pass") for _ in range(3)]
    with kept_on({min(os.sched_getaffinity(0))}, *shared):
        start = look(shared[0])

        def both():
            elapsed = look(shared[0]).since(start)
            return elapsed if min(elapsed.busy, elapsed.waited) > 0.1 else None

        found = wait_until(both)
    assert found and found.busy < found.wall


def test_a_process_that_has_ended_has_no_times_and_is_let_be(process):
    pid = process("")
    os.waitpid(pid, 0)
    ended = look(pid)
    assert (ended.busy, ended.since(ended).wall) == (0.0, 0.0)
    with kept_on({0}, pid):
        assert os.sched_getaffinity(0) == allowed(pid)
    assert Elapsed(5.0, 3.0, 2.0).since(Elapsed(1.0, 2.0, 0.5)) == Elapsed(4.0, 1.0, 1.5)


def test_a_process_keeps_to_a_core_with_all_threads_and_is_free_again():
    own, core = os.sched_getaffinity(0), max(os.sched_getaffinity(0))
    with busy_child() as child:

        def threads():
            tasks = os.listdir(f"/proc/{child.pid}/task")
            return [os.sched_getaffinity(int(each)) for each in tasks]

        with kept_on({core}, child.pid):
            assert threads() == [{core}] * 2
        assert threads() == [own] * 2
        with kept_on({core}, child.pid):  # and nothing happens where it has ended meanwhile
            child.kill()
            child.wait()


@pytest.mark.parametrize("count", [1, 2, cores.LOOKED_AT, 16])
def test_the_quickest_core_is_where_the_probe_takes_least(monkeypatch, count):
    """Of a few drawn ones, where there are more."""
    kept, looked_at = {7: range(count)}, []
    monkeypatch.setattr(cores, "allowed", kept.get)
    monkeypatch.setattr(cores, "_keep", lambda pid, cores: kept.update({pid: cores}))

    def probe():
        (core,) = kept[7]
        looked_at.append(core)
        return 20.0 - core

    assert cores.quickest(7, probe) == max(looked_at)
    assert len({*looked_at}) == len(looked_at) == min(count, cores.LOOKED_AT)
    assert kept == {7: range(count)}
