"""A process's time by the wall, on its cores and in wait for one; and the cores that it may use."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from common.measure import cores
from common.measure.cores import Elapsed, allowed, kept_on, look
from tests.support.processes import busy_child
from tests.support.waiting import wait_until


def test_a_process_that_sleeps_or_has_ended_takes_no_processor_time():
    with subprocess.Popen(["sleep", "600"]) as child:
        start = look(child.pid)
        time.sleep(0.1)
        asleep = look(child.pid).since(start)
        assert asleep.wall >= 0.1 and asleep.busy == pytest.approx(0, abs=0.02)
        child.kill()
    assert look(child.pid).busy == 0.0
    with kept_on({0}, child.pid):
        assert os.sched_getaffinity(0) == allowed(child.pid)
    assert Elapsed(5.0, 3.0, 2.0).since(Elapsed(1.0, 2.0, 0.5)) == Elapsed(4.0, 1.0, 1.5)


@pytest.mark.slow
def test_a_process_that_shares_its_core_waits_for_the_rest_of_the_time():
    """A wait counts once it has ended."""
    endless = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(endless) as child, subprocess.Popen(endless) as other:
        with kept_on({min(os.sched_getaffinity(0))}, child.pid, other.pid):
            start = look(child.pid)
            waited = wait_until(lambda: min(vars(look(child.pid).since(start)).values()) > 0.1)
        child.kill(), other.kill()
    assert waited


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
