"""Processes kept on cores, and the quickest of a few."""

from __future__ import annotations

import os

import pytest

from common.measure import affinity
from tests.support.processes import busy_child


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


@pytest.mark.parametrize("count", [1, 2, affinity.LOOKED_AT, 16])
def test_the_quickest_core_is_where_the_probe_takes_least(monkeypatch, count):
    """Of a few drawn ones, where there are more."""
    kept, looked_at = {7: range(count)}, []
    monkeypatch.setattr(affinity, "_allowed", kept.get)
    monkeypatch.setattr(affinity, "_keep", lambda pid, cores: kept.update({pid: cores}))

    def probe():
        (core,) = kept[7]
        looked_at.append(core)
        return 20.0 - core

    assert affinity.quickest(7, probe) == max(looked_at)
    assert len({*looked_at}) == len(looked_at) == min(count, affinity.LOOKED_AT)
    assert kept == {7: range(count)}


def affinities(pid):
    return [os.sched_getaffinity(int(each)) for each in os.listdir(f"/proc/{pid}/task")]
