"""Tasks over made-up executors: every case once, whatever is lost, and no loop."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.engines import ray_engine
from common.engines.ray_engine import GRADED, TWICE
from common.errors import UserError
from tests.support import fake_ray
from tests.support.fake_ray import SOLUTIONS, STAYS_AWAY, FakeExecutor, all_of, swept

KILLER = ("bob/rope", "c5")


def asked(executors):
    """How often each solution was asked each case."""
    return sum((executor.asked for executor in executors), Counter())


def test_every_case_runs_once_with_all_its_solutions_and_tasks_shrink():
    executors = [FakeExecutor(name, count=2000) for name in "abc"]
    found, lines = swept(executors)
    assert found == all_of(2000) and not lines
    assert max(asked(executors).values()) == 1
    for executor in executors:
        sizes = [len(task.due) for task in executor.tasks]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] == GRADED // len(SOLUTIONS) and sizes[-1] == 1
        assert {names for task in executor.tasks for names in task.due.values()} == {SOLUTIONS}


def test_a_lost_case_runs_once_more_at_the_end_elsewhere_and_alone(monkeypatch):
    """Finished cases do not run again; the cases after it go on meanwhile."""
    monkeypatch.setattr(ray_engine, "GRADED", 2)
    order, lost = [], []

    def loses(executor, solution, case):
        order.append((executor.name, solution, case))
        if executor.name == "a" and len(executor.tasks) == 2 and not lost:
            lost.append(case)
            return True
        return False

    executors = [FakeExecutor(name, loses) for name in "ab"]
    found, lines = swept(executors)
    assert found == all_of(40)
    assert lines == ["executor 0 was lost: killed"]
    (case,) = lost
    assert order[-2:] == [("b", name, case) for name in SOLUTIONS]
    assert [task.due for task in executors[1].tasks[-2:]] == [{case: (n,)} for n in SOLUTIONS]
    assert {key for key, times in asked(executors).items() if times > 1} == {("ada/rope", case)}


@pytest.mark.parametrize("count", [1, 3])
def test_a_case_that_is_lost_twice_is_crashed(count):
    executors = [FakeExecutor(str(number), lambda _, *of: of == KILLER) for number in range(count)]
    found, lines = swept(executors)
    assert found == all_of(40) - Counter([(*KILLER, "PASSED")]) + Counter([(*KILLER, "CRASHED")])
    assert asked(executors)[KILLER] == 2 == len(lines)
    assert [reason for executor in executors for reason in executor.reasons] == [TWICE]


def ends_for_good(executor, *_):
    executor.away = STAYS_AWAY
    return True


def has_less_room(executor, *_):
    executor.cases = fake_ray.cases(2)
    return True


@pytest.mark.parametrize(("loses", "reason"), [
    (ends_for_good, "it stays away"),
    (has_less_room, "has too little free memory"),
])  # fmt: skip
def test_an_executor_that_does_not_start_again_leaves_its_part_to_the_others(loses, reason):
    executors = [FakeExecutor("a", loses), FakeExecutor("b")]
    found, lines = swept(executors)
    assert found == all_of(40)
    assert lines == ["executor 0 was lost: killed", f"executor 0 does not start again: {reason}"]
    assert executors[0].ended, "it would keep its share of the memory"


def test_a_lost_case_waits_for_no_executor_that_stays_silent():
    """The one that lost it is idle, and runs it again once the other is given up."""

    def loses(executor, *of):
        executor.silent = executor.name == "a"
        return executor.silent or (of == ("bob/rope", "c39") and executor.asked[of] == 1)

    found, lines = swept([FakeExecutor(name, loses) for name in "ab"])
    assert found == all_of(40)
    assert lines[-1] == "executor 0 does not start again: its GPU is taken"


def test_where_no_executor_is_left_the_command_ends_in_one_line():
    with pytest.raises(UserError, match=r"no device is left .*; repeat the command to continue"):
        swept([FakeExecutor("a", ends_for_good)])


@pytest.mark.parametrize(("changed", "reason"), [
    ({"versions": {"torch": "1"}}, "has other versions of its packages"),
    ({"count": 4}, "has too little free memory"),
    ({"kind": "Another GPU"}, "is another device than A GPU"),
    ({"away": STAYS_AWAY}, "it stays away"),
    ({"away": fake_ray.RayError("its node has ended")}, "its node has ended"),
    ({"silent": True}, "its GPU is taken"),
])  # fmt: skip
def test_an_executor_that_cannot_run_the_cases_takes_no_part(changed, reason):
    executors = [FakeExecutor("a"), FakeExecutor("b", **changed)]
    with fake_ray.fake_cluster(fake_ray.JOB, executors) as engine:
        assert engine.started.device_info.uuid == "a"
        assert engine.notes == [f"executor 1 takes no part: {reason}"]
        assert executors[1].ended and not executors[0].ended


def test_where_no_executor_starts_the_reason_is_one_line():
    with pytest.raises(UserError, match=r"^executor 0 takes no part: it stays away$"):
        swept([FakeExecutor("a", away=STAYS_AWAY)])


@pytest.mark.parametrize(("fault", "kind", "says"), [
    (ValueError("no"), RuntimeError, "the harness failed on a device:\nTraceback: no"),
    (UserError("eager's process failed"), UserError, r"^eager's process failed$"),
])  # fmt: skip
def test_a_failure_of_the_harness_ends_the_command(fault, kind, says):
    with pytest.raises(kind, match=says):
        swept([FakeExecutor("a", fault=fault)])


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 4), share=st.sampled_from([0.01, 0.1, 0.3]))
def test_whatever_is_lost_each_case_comes_once(seed, count, share):
    dice = random.Random(seed)
    executors = [FakeExecutor(str(n), lambda *_: dice.random() < share) for n in range(count)]
    found, _ = swept(executors)
    assert len(found) == 2 * 40 and set(found.values()) == {1}
    assert {key[:2] for key in found} == {key[:2] for key in all_of(40)}
