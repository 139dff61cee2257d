"""The harness's clock of a process, and the cores that a process may use."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from common.measure.cores import LOOKED_AT, allowed, kept_on, quickest, started
from tests.support.processes import busy_child


def test_the_clock_of_a_process_that_sleeps_is_the_walls():
    with subprocess.Popen(["sleep", "600"]) as child:
        wall, seconds = time.perf_counter(), started(child.pid)
        time.sleep(0.1)
        assert seconds() == pytest.approx(time.perf_counter() - wall, rel=0.2)
        child.kill()
    with kept_on({0}, child.pid):  # and one that has ended is let be
        assert os.sched_getaffinity(0) == allowed(child.pid)


@pytest.mark.slow
def test_a_wait_for_a_core_is_left_out():
    endless = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(endless) as child, subprocess.Popen(endless) as other:
        with kept_on({min(os.sched_getaffinity(0))}, child.pid, other.pid):
            wall, seconds = time.perf_counter(), started(child.pid)
            time.sleep(0.5)
            assert seconds() < 0.8 * (time.perf_counter() - wall)
        child.kill(), other.kill()


def test_a_process_keeps_to_a_core_with_all_threads_and_is_free_again():
    own, core = os.sched_getaffinity(0), max(os.sched_getaffinity(0))
    with busy_child() as child:

        def threads():
            tasks = os.listdir(f"/proc/{child.pid}/task")
            return [os.sched_getaffinity(int(each)) for each in tasks]

        with kept_on({core}, child.pid):
            assert threads() == [{core}] * 2
        assert threads() == [own] * 2


def test_the_quickest_core_is_where_the_probe_takes_least():
    """Of a few drawn ones, where there are more."""
    own, looked_at = os.sched_getaffinity(0), []
    with busy_child() as child:

        def probe():
            (core,) = os.sched_getaffinity(child.pid)
            looked_at.append(core)
            return 20.0 - core

        assert quickest(child.pid, probe) == max(looked_at)
        assert os.sched_getaffinity(child.pid) == own
    assert len({*looked_at}) == len(looked_at) == min(len(own), LOOKED_AT)
