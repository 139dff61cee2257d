"""Processes kept on cores, and the quickest of a few."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

from common.measure import affinity


def test_a_process_keeps_to_one_core_with_all_its_threads_and_is_free_again():
    allowed = os.sched_getaffinity(0)
    core = min(allowed)
    with busy_child() as child:
        with affinity.kept_on({core}, child.pid):
            assert affinities(child.pid) == [{core}] * 2
        assert affinities(child.pid) == [allowed] * 2


def test_a_process_keeps_to_the_cores_of_another_and_is_free_again():
    allowed = os.sched_getaffinity(0)
    core = max(allowed)
    with busy_child() as first, busy_child() as second, affinity.kept_on({core}, first.pid):
        with affinity.kept_as(first.pid, second.pid):
            assert affinities(second.pid) == [{core}] * 2
        assert affinities(second.pid) == [allowed] * 2


def test_one_that_has_ended_meanwhile_is_left_alone():
    with busy_child() as child, affinity.kept_on({min(os.sched_getaffinity(0))}, child.pid):
        child.kill()
        child.wait()


def test_one_that_has_ended_before_is_let_be():
    with busy_child() as child:
        child.kill()
    with affinity.kept_as(child.pid, child.pid):
        assert os.sched_getaffinity(0) == affinity._allowed(child.pid)


def test_the_quickest_core_is_where_the_probe_takes_least():
    pid, times = os.getpid(), {core: 20.0 - core for core in os.sched_getaffinity(0)}

    def probe():
        (core,) = os.sched_getaffinity(0)
        return times[core]

    assert affinity.quickest(pid, probe) == max(times)
    assert os.sched_getaffinity(0) == set(times)


SPINS = (
    "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start();"
    "print(1, flush=True)"
)


@contextlib.contextmanager
def busy_child():
    """A process with two threads."""
    with subprocess.Popen([sys.executable, "-c", SPINS], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        try:
            yield child
        finally:
            child.kill()


def affinities(pid):
    return [os.sched_getaffinity(int(each)) for each in os.listdir(f"/proc/{pid}/task")]
