"""Tasks over made-up executors: every case once, whatever is lost, and no loop."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.engines import ray_engine
from common.engines.ray_engine import SIZES, SUSPECTS, TWICE
from common.errors import UserError
from tests.support.fake_ray import JOB, SOLUTIONS, FakeCluster, FakeExecutor, all_of, cases, swept

KILLER = ("bob/rope", "c5")
AWAY = "executor 0 does not start again: it stays away"


def kills(executor, *of):
    return of == KILLER


def test_tasks_shrink_towards_the_end():
    executor = FakeExecutor("a", count=2000)
    found, _ = swept([executor])
    assert found == all_of(2000)
    sizes = [len(task.due) for task in executor.tasks]
    assert sizes[0] == SIZES["grade"][1] and sizes == sorted(sizes, reverse=True)
    assert sizes[-2] == SIZES["grade"][0]
    assert [case for task in executor.tasks for case in task.due] == list(cases(2000)["rope"])


def test_every_case_runs_once_with_all_its_solutions():
    executors = [FakeExecutor(name, count=400) for name in "abc"]
    found, lines = swept(executors)
    assert found == all_of(400) and not lines
    asked = sum((executor.asked for executor in executors), Counter())
    assert max(asked.values()) == 1 and all(executor.tasks for executor in executors)
    due = {names for each in executors for task in each.tasks for names in task.due.values()}
    assert due == {SOLUTIONS}, "all solutions of a case run on one device"


def test_a_lost_case_runs_once_more_at_the_end_elsewhere_and_alone(monkeypatch):
    """Finished cases do not run again; the cases after it go on meanwhile."""
    monkeypatch.setitem(SIZES, "grade", (1, 3))
    monkeypatch.setattr(ray_engine, "SUSPECTS", 1)
    order = []

    def loses(executor, solution, case):
        order.append((executor.name, solution, case))
        second = executor.name == "a" and len(executor.tasks) == 2
        return second and (solution, case) == ("ada/rope", [*executor.tasks[1].due][1])

    executors = [FakeExecutor(name, loses) for name in "ab"]
    found, lines = swept(executors)
    assert found == all_of(40)
    assert lines == ["executor 0 was lost: killed"]
    case = [*executors[0].tasks[1].due][1]
    assert order[-2:] == [("b", name, case) for name in SOLUTIONS]
    assert [task.due for task in executors[1].tasks[-2:]] == [{case: (n,)} for n in SOLUTIONS]
    asked = executors[0].asked + executors[1].asked
    assert {key for key, times in asked.items() if times > 1} == {("ada/rope", case)}
    assert executors[0].starts == 2


@pytest.mark.parametrize("count", [1, 3])
def test_a_case_that_is_lost_twice_is_crashed(count):
    executors = [FakeExecutor(str(number), kills) for number in range(count)]
    found, lines = swept(executors)
    assert found == all_of(40) - Counter([(*KILLER, "PASSED")]) + Counter([(*KILLER, "CRASHED")])
    asked = sum((executor.asked for executor in executors), Counter())
    assert asked[KILLER] == 2 == len(lines)
    assert [reason for executor in executors for reason in executor.reasons] == [TWICE]


def test_a_task_given_to_a_node_that_has_ended_goes_to_another_executor():
    gone, give = FakeExecutor("a"), ray_engine.RemoteExecutor.give

    def silent(executor, task):
        give(executor, task)
        gone.says = gone.says and executor.name != "executor 0"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_engine.RemoteExecutor, "give", silent)
        found, lines = swept([gone, FakeExecutor("b")])
    assert found == all_of(40) and gone.ended and not gone.asked
    assert lines == ["executor 0 does not start again: its GPU is taken, or its node gone, for 0 s"]


def test_a_solution_that_ends_its_executor_in_every_case_makes_no_loop():
    executors = [
        FakeExecutor(name, lambda _, solution, case: solution == "bob/rope") for name in "ab"
    ]
    found, _ = swept(executors)
    crashed = {key: 1 for key in all_of(40, "CRASHED") if key[0] == "bob/rope"}
    assert found == crashed | {key: 1 for key in all_of(40) if key[0] == "ada/rope"}
    asked = executors[0].asked + executors[1].asked
    assert max(asked.values()) <= 2 + 40 / SUSPECTS


@pytest.mark.parametrize("starts_again", [True, False])
def test_an_executor_that_is_lost_in_every_case_leaves_its_part_to_the_others(starts_again):
    executors = [FakeExecutor("a", lambda *_: True, count=400), FakeExecutor("b", count=400)]
    executors[0].starts_again = starts_again
    found, lines = swept(executors)
    assert found == all_of(400)
    if not starts_again:
        assert lines == ["executor 0 was lost: killed", AWAY]
        assert executors[0].ended, "it would keep its share of the memory"


@pytest.mark.parametrize("says", [True, False])
def test_where_no_executor_is_left_the_command_ends_in_one_line(says):
    """With an executor that does not start again, or that Ray does not place again."""
    executor = FakeExecutor("a")
    executor.starts_again = not says
    executor.loses = lambda *_: setattr(executor, "says", says) or True
    with pytest.raises(UserError, match=r"no device is left .*; repeat the command to continue"):
        swept([executor])


def test_each_kind_of_device_runs_every_case():
    executors = [FakeExecutor(name, kind=kind) for name, kind in
                 zip("abc", ("A GPU", "Another GPU", "Another GPU"), strict=True)]  # fmt: skip
    found, _ = swept(executors)
    assert found == all_of(40) + all_of(40)
    assert sum(executors[0].asked.values()) == 2 * 40


def test_an_executor_with_other_versions_takes_no_part():
    executors = [FakeExecutor("a"), FakeExecutor("b", versions={"torch": "1"})]
    with FakeCluster(JOB, executors) as engine:
        assert [kind.device_info.uuid for kind in engine.kinds["a-gpu"]] == ["a"]
        assert engine.notes == ["executor 1 takes no part: has other versions of its packages"]
        assert executors[1].ended and engine.busy == (0, 1)


def test_where_no_executor_starts_the_reason_is_one_line():
    executor = FakeExecutor("a")
    executor.starts, executor.starts_again = 1, False
    with pytest.raises(UserError, match=r"^executor 0 takes no part: it stays away$"):
        FakeCluster(JOB, [executor]).__enter__()


@pytest.mark.parametrize(("fault", "kind", "says"), [
    (ValueError("no"), RuntimeError, "the harness failed on a device:\nTraceback: no"),
    (UserError("eager's process failed"), UserError, r"^eager's process failed$"),
])  # fmt: skip
def test_a_failure_of_the_harness_ends_the_command(fault, kind, says):
    executor = FakeExecutor("a")
    executor.fault = fault
    with pytest.raises(kind, match=says):
        swept([executor])


def test_devices_of_a_kind_take_the_cases_that_all_have_room_for():
    small, large = FakeExecutor("small"), FakeExecutor("large", count=4)
    small.cases = {"rope": ("c3", "c1")}
    with FakeCluster(JOB, [large, small]) as engine:
        assert engine.cases("a-gpu") == {"rope": ("c1", "c3")}


def test_a_device_with_less_room_than_before_does_not_start_again():
    def loses(*_):
        first.cases = cases(2)
        return True

    first, other = FakeExecutor("a", loses, count=4), FakeExecutor("b", count=4)
    found, lines = swept([first, other])
    assert found == all_of(4)
    assert "less of its memory is free than before" in lines[1] and first.ended


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 4), share=st.sampled_from([0.01, 0.1, 0.3]))
def test_whatever_is_lost_each_case_comes_once(seed, count, share):
    dice = random.Random(seed)
    executors = [
        FakeExecutor(str(number), lambda *_: dice.random() < share) for number in range(count)
    ]
    found, _ = swept(executors)
    assert len(found) == 2 * 40 and set(found.values()) == {1}
    assert {key[:2] for key in found} == {key[:2] for key in all_of(40)}
