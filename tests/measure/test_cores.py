"""The harness's clock of a process, and the cores that a process may use."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from common.measure import cores
from common.measure.cores import allowed, kept_on, started
from tests.support.processes import busy_child
from tests.support.waiting import wait_until


def test_the_clock_of_a_process_that_sleeps_is_the_walls():
    with subprocess.Popen(["sleep", "600"]) as child:
        wall, seconds = time.perf_counter(), started(child.pid)
        time.sleep(0.1)
        assert seconds() == pytest.approx(time.perf_counter() - wall, rel=0.2)
        child.kill()
    with kept_on({0}, child.pid):  # and one that has ended is let be
        assert os.sched_getaffinity(0) == allowed(child.pid)


@pytest.mark.parametrize(
    ("waited", "busy", "seconds"),
    [(0.0, 0.1, 1.0), (0.0, 2.0, 1.0), (0.6, 0.3, 0.4), (0.6, 0.9, 0.9)],
)
def test_a_wait_for_a_core_is_left_out_unless_the_process_worked(
    monkeypatch, waited, busy, seconds
):
    """A process may starve its own main thread by another one of its threads."""
    looks = iter([(5.0, 1.0, 2.0), (6.0, 1.0 + waited, 2.0 + busy)])
    monkeypatch.setattr(cores, "_look", lambda pid: next(looks))
    assert started(0)() == pytest.approx(seconds)


@pytest.mark.slow
def test_a_process_that_shares_its_core_waits_for_the_rest_of_the_time():
    endless = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(endless) as child, subprocess.Popen(endless) as other:
        with kept_on({min(os.sched_getaffinity(0))}, child.pid, other.pid):
            _, waited, busy = cores._look(child.pid)
            waits = wait_until(lambda: cores._look(child.pid)[1] > waited + 0.1)
            works = wait_until(lambda: cores._look(child.pid)[2] > busy + 0.1)
        child.kill(), other.kill()
    assert waits and works


def test_a_process_keeps_to_a_core_with_all_threads_and_is_free_again():
    own, core = os.sched_getaffinity(0), max(os.sched_getaffinity(0))
    with busy_child() as child:

        def threads():
            tasks = os.listdir(f"/proc/{child.pid}/task")
            return [os.sched_getaffinity(int(each)) for each in tasks]

        with kept_on({core}, child.pid):
            assert threads() == [{core}] * 2
        assert threads() == [own] * 2


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
