"""Tasks over made-up executors: every case once, whatever is lost, and no loop."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.engines import ray_engine
from common.engines.engine import Task
from common.engines.ray_engine import SIZES, SUSPECTS, TWICE, by_case
from common.errors import UserError
from tests.support.executors import JOB, SOLUTIONS, FakeExecutor, all_of, cases, swept, verdicts
from tests.support.fake_ray import FakeCluster, RayError

KILLER = ("bob/rope", "c5")


def kills(executor, *of):
    return of == KILLER


@pytest.mark.parametrize(("count", "sizes", "expected"), [
    (10, (1, 3), [3, 2, 2, 1, 1, 1]),
    (4, (16, 256), [4]),
    (2000, (16, 256), [256] * 3),
])  # fmt: skip
def test_tasks_shrink_towards_the_end(count, sizes, expected, monkeypatch):
    """Half of an executor's share of the rest."""
    monkeypatch.setitem(SIZES, "grade", sizes)
    with FakeCluster(JOB, [FakeExecutor(name, count=count) for name in "ab"]) as cluster:
        parts = list(cluster._parts("a-gpu", cluster.tasks("a-gpu")))
    found = [len(part.due) for part in parts]
    assert found[: len(expected)] == expected
    assert found == sorted(found, reverse=True)
    assert [case for part in parts for case in part.due] == list(cases(count)["rope"])


def test_every_case_is_done_once_and_by_all_stations():
    executors = [FakeExecutor(name, count=400) for name in "abc"]
    found, lines = swept(executors)
    assert found == all_of(400)
    assert not lines
    assert sum((executor.asked for executor in executors), Counter()).most_common(1)[0][1] == 1
    assert all(executor.tasks and executor.ended for executor in executors)
    due = {
        names for executor in executors for task in executor.tasks for names in task.due.values()
    }
    assert due == {SOLUTIONS}, "all solutions answer a case on one device"


def test_a_lost_case_is_done_once_more_elsewhere_and_alone(monkeypatch):
    """The whole cases before it are not run again; those after it go on meanwhile."""
    monkeypatch.setitem(SIZES, "grade", (1, 3))
    monkeypatch.setattr(ray_engine, "SUSPECTS", 1)
    order = []

    def loses(executor, solution, case):
        order.append((executor.name, solution, case))
        second = executor.name == "a" and len(executor.tasks) == 2
        return second and (solution, case) == ("bob/rope", [*executor.tasks[1].due][1])

    executors = [FakeExecutor(name, loses) for name in "ab"]
    found, lines = swept(executors)
    assert found == all_of(40)
    assert lines[0] == "executor 0 was lost: killed"
    case = [*executors[0].tasks[1].due][1]
    assert [each[1:] for each in order[-2:]] == [(name, case) for name in SOLUTIONS]
    assert {each[0] for each in order[-2:]} == {"b"}, "elsewhere"
    assert [task.due for task in executors[1].tasks[-2:]] == [{case: (n,)} for n in SOLUTIONS]
    asked = executors[0].asked + executors[1].asked
    assert {key for key, times in asked.items() if times > 1} == {(n, case) for n in SOLUTIONS}
    assert executors[0].starts == 2


@pytest.mark.parametrize("count", [1, 3])
def test_a_case_that_is_lost_again_is_crashed(count):
    executors = [FakeExecutor(str(number), kills) for number in range(count)]
    found, lines = swept(executors)
    assert found == all_of(40) - Counter([(*KILLER, "PASSED")]) + Counter([(*KILLER, "CRASHED")])
    asked = sum((executor.asked for executor in executors), Counter())
    assert asked[KILLER] == 2 == len(lines)
    assert [reason for executor in executors for reason in executor.reasons] == [TWICE]


def test_a_station_that_is_lost_after_its_answers_costs_no_verdict():
    """Of a case that is done once more, too."""
    executor = FakeExecutor("a", lambda executor, *of: of == ("bob/rope", "c1"), count=2)
    answering = executor.run

    def run(task):
        yield from answering(task)
        raise RayError("killed")

    def start():
        if executor.starts:
            executor.loses = lambda *_: False
        return starting()

    starting, executor.start, executor.run = executor.start, start, run
    found, lines = swept([executor])
    assert found == all_of(2)
    assert len(lines) == 3


def test_a_station_that_ended_while_it_waited_crashes_no_case():
    """It is asked for a sign of life before it gets a lost case."""
    first = FakeExecutor("a", lambda executor, *of: of == KILLER and executor.starts == 1)
    idle = FakeExecutor("b", lambda executor, *_: len(executor.tasks) > 2 and executor.starts == 1)
    found, _ = swept([first, idle])
    assert set(found.values()) == {1}
    assert found == all_of(40)


def test_a_solution_that_ends_its_station_in_every_case_is_not_run_for_ever():
    executors = [
        FakeExecutor(name, lambda _, solution, case: solution == "bob/rope") for name in "ab"
    ]
    found, _ = swept(executors)
    crashed = {key: 1 for key in all_of(40, "CRASHED") if key[0] == "bob/rope"}
    assert found == crashed | {key: 1 for key in all_of(40) if key[0] == "ada/rope"}
    asked = executors[0].asked + executors[1].asked
    assert max(asked.values()) <= 2 + 40 / SUSPECTS, "no loop"


@pytest.mark.parametrize("solution", SOLUTIONS)
def test_a_case_that_does_not_fit_is_said_once_beside_what_was_answered(solution):
    executors = [FakeExecutor(name) for name in "ab"]
    for executor in executors:
        executor.too_large = solution, "c7"
    found, _ = swept(executors)
    assert found == all_of(40) - Counter([(solution, "c7", "PASSED")]) + Counter(
        [("c7", "TOO LARGE")]
    )


def test_the_answers_to_a_case_come_together_and_those_of_one_that_did_not_fit_at_the_end():
    executor = FakeExecutor("a")
    task = Task("rope", dict.fromkeys(("c0", "c1"), SOLUTIONS))
    (ada, bob), other = (verdicts(name, "c0") for name in SOLUTIONS), verdicts("ada/rope", "c1")
    executor.too_large = "bob/rope", "c1"
    large = executor.answer(task, "bob/rope", "c1")
    assert list(by_case([other, ada, large, bob], task)) == [[ada, bob], [other, large]]


def test_a_station_that_does_not_start_again_leaves_its_part_to_the_others():
    executors = [FakeExecutor("a", lambda *_: True), FakeExecutor("b")]
    executors[0].starts_again = False
    found, lines = swept(executors)
    assert found == all_of(40)
    assert lines == [
        "executor 0 was lost: killed",
        "executor 0 does not start again: it stays away",
    ]
    assert executors[0].ended, "it would keep its share of the memory"


def test_a_station_that_is_lost_in_every_case_costs_no_verdict():
    """The machine may be at fault."""
    executors = [FakeExecutor("a", lambda *_: True, count=400), FakeExecutor("b", count=400)]
    found, _ = swept(executors)
    assert found == all_of(400)


def test_where_no_station_is_left_the_same_command_goes_on():
    executor = FakeExecutor("a", lambda _, solution, case: case == "c9")
    executor.starts_again = False
    with pytest.raises(UserError, match=r"no device is left .*; repeat the command to continue"):
        swept([executor])


def test_a_lost_station_that_does_not_come_back_is_waited_for_no_longer(monkeypatch):
    monkeypatch.setattr(ray_engine, "LONGEST_PLACING", 0.0)
    executor = FakeExecutor("a")

    def loses(*_):
        executor.says = False
        return True

    executor.loses = loses
    with pytest.raises(UserError, match="no device is left"):
        swept([executor])


def test_a_station_at_work_that_says_nothing_is_killed_and_starts_again(monkeypatch):
    monkeypatch.setattr(ray_engine, "LONGEST_SILENCE", 0.0)
    hangs = FakeExecutor("a", lambda executor, *_: len(executor.tasks) == 1)

    def kill(for_good):
        hangs.says = True  # Ray tells that it has ended
        hangs.ended = for_good

    run, hangs.kill = hangs.run, kill
    hangs.run = lambda task: setattr(hangs, "says", bool(hangs.tasks)) or run(task)
    found, lines = swept([hangs])
    assert found == all_of(40)
    assert lines == ["executor 0 was lost: killed"]
    assert hangs.starts > 1


def test_a_task_given_to_a_station_whose_node_has_ended_is_done_elsewhere():
    """Ray says nothing of such a task until it has started the actor again."""
    gone = FakeExecutor("a")
    gone.starts_again = False

    def waits(task):
        gone.says = gone.alive = False
        return iter(())

    gone.run = waits
    found, lines = swept([gone, FakeExecutor("b")])
    assert found == all_of(40)
    assert lines == [
        "executor 0 was lost: its process or its node has ended",
        "executor 0 does not start again: it stays away",
    ]


def test_stations_of_several_kinds_have_tasks_of_their_own():
    executors = [
        FakeExecutor("a"),
        FakeExecutor("b", kind="Another GPU"),
        FakeExecutor("c", kind="Another GPU"),
    ]
    found, _ = swept(executors)
    assert found == all_of(40) + all_of(40)
    assert sum(executors[0].asked.values()) == 2 * 40


def test_a_station_with_other_versions_takes_no_part():
    executors = [FakeExecutor("a"), FakeExecutor("b", versions={"torch": "1"})]
    with FakeCluster(JOB, executors) as cluster:
        assert [kind.device_info.uuid for kind in cluster.kinds["a-gpu"]] == ["a"]
        assert cluster.notes == ["executor 1 takes no part: has other versions of its packages"]
        assert executors[1].ended
        assert cluster.busy == (0, 1)


def test_where_none_starts_the_reason_is_one_line():
    executor = FakeExecutor("a")
    executor.starts, executor.starts_again = 1, False
    with pytest.raises(UserError, match=r"^executor 0 takes no part: it stays away$"):
        FakeCluster(JOB, [executor]).__enter__()


def test_a_failure_of_the_harness_ends_the_sweep():
    executor = FakeExecutor("a")
    executor.fault = ValueError("no")
    with pytest.raises(RuntimeError, match="the harness failed on a device:\nTraceback: no"):
        swept([executor])
    executor.fault = UserError("eager's process failed")
    with pytest.raises(UserError, match=r"^eager's process failed$"):
        swept([executor])
    assert executor.ended


def test_devices_of_a_kind_take_the_cases_that_all_have_room_for():
    small, large = FakeExecutor("small"), FakeExecutor("large", count=4)
    small.cases = {"rope": ("c3", "c1")}
    with FakeCluster(JOB, [large, small]) as cluster:
        assert cluster.cases("a-gpu") == {"rope": ("c1", "c3")}


def test_a_device_with_less_room_than_before_does_not_start_again():
    def loses(*_):
        first.cases = cases(2)
        return True

    first, other = FakeExecutor("a", loses, count=4), FakeExecutor("b", count=4)
    found, lines = swept([first, other])
    assert found == all_of(4)
    assert lines[1:] == ["executor 0 does not start again: less of its memory is free than before,"
                         " or it is another device"]  # fmt: skip
    assert first.ended


def test_the_most_memory_of_a_kind_is_kept():
    executors = [FakeExecutor("a")]
    with FakeCluster(JOB, executors) as cluster:
        list(cluster.run({"a-gpu": cluster.tasks("a-gpu")}))
        assert cluster.memory["a-gpu"] == {"device": len(executors[0].tasks)}


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 4), share=st.sampled_from([0.01, 0.1, 0.3]))
def test_whatever_is_lost_each_case_comes_once(seed, count, share):
    dice = random.Random(seed)
    executors = [
        FakeExecutor(str(number), lambda *_: dice.random() < share) for number in range(count)
    ]
    found, _ = swept(executors)
    assert len(found) == 2 * 40
    assert set(found.values()) == {1}
    assert {key[:2] for key in found} == {key[:2] for key in all_of(40)}
