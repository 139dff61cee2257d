"""Units over made-up stations: every case once, whatever is lost, and no loop."""

import random
import threading
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.engines.engine import UNLUCKY, Fleet, Lost
from common.engines.units import SIZES, Failed, Finished, Sizes, Unit, plan
from common.engines.work import LIVES, SUSPECTS, TRIES, Gathered, Work
from common.errors import UserError
from tests.support.stations import JOB, SOLUTIONS, Station, all_of, cases, swept, takes_first
from tests.support.waiting import LONGEST, wait_until


def test_units_shrink_towards_the_end():
    """Half of a station's share of the rest, over all ops together."""
    job = JOB
    sizes = [len(unit.cases) for unit in plan(job, cases(10), Sizes(1, 3, 2))]
    assert sizes == [3, 2, 2, 1, 1, 1]
    sizes = [len(unit.cases) for unit in plan(job, cases(2000), Sizes(16, 256, 2))]
    assert max(sizes) == 256 and sizes[-2:] != [256, 256]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == 2000


def test_what_an_earlier_run_did_is_planned_no_more():
    done = {("ada/rope", "rope", "c0"), ("bob/rope", "rope", "c0"), ("ada/rope", "rope", "c1")}
    (unit,) = plan(JOB, cases(3), Sizes(9, 9), done=done)
    assert unit.cases == ("c1", "c2")
    assert unit.due("c1") == {"bob/rope"}
    assert unit.due("c2") == set(SOLUTIONS)


def test_every_case_is_done_once_and_by_all_stations():
    stations = [Station(name) for name in "abc"]
    found, lines = swept(stations)
    assert found == all_of(40)
    assert not lines
    assert sum((each.asked for each in stations), Counter()).most_common(1)[0][1] == 1
    assert all(each.closed for each in stations)


def test_what_was_under_way_at_a_loss_is_done_again_elsewhere(monkeypatch):
    """Half of case c3 was answered; the whole cases before it are not run again."""

    def loses(station, solution, case):
        return station.name == "a" and (solution, case) == ("bob/rope", "c3")

    takes_first(monkeypatch, "a")
    stations = [Station(name, loses) for name in "ab"]
    found, lines = swept(stations)
    assert found == all_of(40)
    assert lines == ["a was lost: killed"]
    assert stations[0].starts == 2
    asked = stations[0].asked + stations[1].asked
    assert stations[1].asked["ada/rope", "c3"] == 1, "elsewhere"
    assert all(asked[solution, f"c{n}"] == 1 for solution in SOLUTIONS for n in range(3))
    assert asked["ada/rope", "c3"] == 2, "the case as a whole"


@pytest.mark.parametrize("count", [1, 3])
def test_a_case_that_ends_its_station_each_time_ends_as_its_verdict(count):
    stations = [
        Station(str(number), lambda _, *of: of == ("bob/rope", "c5")) for number in range(count)
    ]
    found, lines = swept(stations)
    killer = ("bob/rope", "c5")
    assert found == all_of(40) - Counter([(*killer, "PASSED")]) + Counter([(*killer, "CRASHED")])
    asked = sum((each.asked for each in stations), Counter())
    assert asked[killer] == TRIES + 1 == len(lines)
    assert asked["ada/rope", "c5"] <= TRIES + 1


def test_the_verdict_says_how_it_came():
    station = Station("a", lambda _, *of: of == ("bob/rope", "c0"), count=1)
    with Fleet(JOB, [station]) as fleet:
        answers = [
            answer
            for _, each in fleet.run({"a-gpu": plan(JOB, cases(1), Sizes(1, 1))})
            if isinstance(each, list)
            for answer in each
        ]
    (crashed,) = (each for each in answers if each.found[0]["verdict"] == "CRASHED")
    words = "its harness ended in each of 4 tries, the last with this case alone"
    assert {each["reason"] for each in crashed.found} == {words}


def test_a_station_that_is_lost_after_its_answers_costs_no_verdict(monkeypatch):
    """As often as a case is tried, it has answered each time."""
    answering, losses = Station.run, []

    def run(self, unit):
        for event in answering(self, unit):
            if isinstance(event, Finished) and len(losses) < 2 * TRIES:
                losses.append(unit)
                raise Lost("killed")
            yield event

    monkeypatch.setattr(Station, "run", run)
    found, lines = swept([Station("a", count=2)], count=2)
    assert found == all_of(2)
    assert len(lines) == 1, "nothing was done again"

    work = Work(
        [alone := Unit(op="rope", cases=("c0",), solutions=SOLUTIONS[:1], tries=TRIES)], "a"
    )
    assert work.take("a") == alone
    work.lost(alone, "a", whole={"c0"})
    assert not work.left


def test_a_solution_that_ends_its_station_in_every_case_is_not_run_for_ever():
    stations = [Station(name, lambda _, solution, case: solution == "bob/rope") for name in "ab"]
    found, lines = swept(stations)
    crashed = {key: 1 for key in all_of(40, "CRASHED") if key[0] == "bob/rope"}
    passed = {key: 1 for key in all_of(40) if key[0] == "ada/rope"}
    assert found == crashed | passed
    assert len(lines) < 12 * LIVES, "not a multiple of the cases"


@pytest.mark.parametrize("solution", SOLUTIONS)
def test_a_case_that_does_not_fit_is_said_once_beside_what_was_answered(solution):
    stations = [Station(name) for name in "ab"]
    for each in stations:
        each.too_large = solution, "c7"
    found, _ = swept(stations)
    missing = Counter([(solution, "c7", "PASSED")])
    assert found == all_of(40) - missing + Counter([("c7", "TOO LARGE")])


def test_a_station_that_does_not_start_again_leaves_its_part_to_the_others():
    stations = [Station("a", lambda *_: True), Station("b")]
    stations[0].starts_again = False
    found, lines = swept(stations)
    assert found == all_of(40)
    assert [line for line in lines if "does not start again" in line] in (
        [], ["a does not start again: it stays away"],
    )  # fmt: skip


def test_a_station_that_is_lost_again_and_again_leaves_its_part_to_the_others():
    """The machine may be at fault; the other one answers when it has its last unit."""

    def waits(*_):
        assert wait_until(lambda: len(stations[0].units) >= UNLUCKY)
        return False

    stations = [Station("a", lambda *_: True, count=400), Station("b", waits, count=400)]
    found, lines = swept(stations, count=400)
    assert found == all_of(400)
    assert stations[0].starts == UNLUCKY
    assert lines[-1] == "a takes no part any more: it was lost again and again"


def test_where_no_station_is_left_the_same_command_goes_on():
    station = Station("a", lambda _, solution, case: case == "c9")
    station.starts_again = False
    with pytest.raises(UserError, match=r"no device is left .*; the same command goes on"):
        swept([station])


def test_stations_of_several_kinds_have_units_of_their_own():
    stations = [Station("a"), Station("b", kind="Another GPU"), Station("c", kind="Another GPU")]
    found, _ = swept(stations)
    assert found == all_of(40) + all_of(40)
    assert sum(stations[0].asked.values()) == 2 * 40


def test_a_station_with_other_versions_takes_no_part():
    stations = [Station("a"), Station("b", versions={"torch": "1"})]
    with Fleet(JOB, stations) as fleet:
        assert [each.place.uuid for each in fleet.kinds["a-gpu"]] == ["a"]
        assert fleet.notes == ["b takes no part: has other versions of its packages"]
        assert stations[1].closed
        assert fleet.busy == (0, 1)


def test_a_failure_of_the_harness_ends_the_sweep():
    station = Station("a")
    station.run = lambda unit: iter([Failed("RuntimeError: no", "Traceback: no")])
    with pytest.raises(RuntimeError, match="the harness failed on a device"):
        swept([station])
    station.run = lambda unit: iter([Failed("eager's process failed")])
    with pytest.raises(UserError, match="eager's process failed"):
        swept([station])


def test_a_unit_that_ends_without_an_answer_is_an_error():
    unit = Unit(op="rope", cases=("c0",), solutions=SOLUTIONS)
    with pytest.raises(RuntimeError, match=r"no answer for c0 of ada/rope, bob/rope"):
        list(Gathered(unit).take(Finished()))


def test_all_solutions_answer_a_case_on_one_device():
    units = plan(JOB, cases(40), SIZES["bench"])
    assert {unit.solutions for unit in units} == {SOLUTIONS}
    assert [case for unit in units for case in unit.cases] == list(cases(40)["rope"])


def test_a_lost_case_stays_on_one_device():
    work = Work([Unit(op="rope", cases=("c0",), solutions=SOLUTIONS)], "ab")
    work.lost(work.take("a"), "a", whole=())
    assert work.take("b").solutions == SOLUTIONS


def test_what_waited_behind_a_loss_is_not_suspected():
    every = cases(SUSPECTS + 4)["rope"]
    work = Work([Unit(op="rope", cases=every, solutions=SOLUTIONS)], "ab")
    work.lost(work.take("a"), "a", whole=())
    units = [work.take("b") for _ in range(SUSPECTS + 1)]
    assert [unit.cases for unit in units] == [*((each,) for each in every[:-4]), every[-4:]]
    assert {(unit.tries, unit.lost_on) for unit in units[:-1]} == {(1, ("a",))}
    assert (units[-1].tries, units[-1].lost_on) == (0, ())


def test_ctrl_c_waits_for_no_station_that_starts(monkeypatch):
    ended = threading.Event()
    stations = [Station(name) for name in "ab"]
    monkeypatch.setattr(stations[0], "start", raises(KeyboardInterrupt))
    monkeypatch.setattr(stations[1], "start", lambda: ended.wait(LONGEST) or pytest.fail("waited"))
    monkeypatch.setattr(stations[1], "close", ended.set)
    with pytest.raises(KeyboardInterrupt):
        Fleet(JOB, stations).__enter__()
    assert ended.is_set() and stations[0].closed


def raises(error):
    def start():
        raise error

    return start


def test_an_end_in_the_midst_ends_the_stations():
    stations = [Station(name) for name in "ab"]
    for each in stations:
        each.gate.clear()
    with Fleet(JOB, stations) as fleet:
        fleet.run({"a-gpu": plan(JOB, cases(40), fleet.sizes("a-gpu"))})
    assert all(each.closed for each in stations)


def test_who_waits_for_work_is_let_go_at_the_end():
    work = Work([Unit(op="rope", cases=("c0",), solutions=SOLUTIONS)], "ab")
    assert work.take("a")
    waiting = threading.Thread(target=work.take, args="b", daemon=True)
    waiting.start()
    wait_until(lambda: work._changed._waiters or not waiting.is_alive())
    assert waiting.is_alive(), "the unit may come back"
    work.close()
    waiting.join(LONGEST)
    assert not waiting.is_alive()


def test_the_most_memory_of_a_kind_is_kept():
    stations = [Station("a")]
    with Fleet(JOB, stations) as fleet:
        list(fleet.run({"a-gpu": plan(JOB, cases(40), fleet.sizes("a-gpu"))}))
        assert fleet.memory["a-gpu"] == {"device": len(stations[0].units)}


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 4), share=st.sampled_from([0.01, 0.1, 0.3]))
def test_whatever_is_lost_each_case_comes_once(seed, count, share):
    dice, lock = random.Random(seed), threading.Lock()

    def loses(*_):
        with lock:
            return dice.random() < share

    stations = [Station(str(number), loses) for number in range(count)]
    found, _ = swept(stations)
    assert len(found) == 2 * 40
    assert set(found.values()) == {1}
    assert {key[:2] for key in found} == {key[:2] for key in all_of(40)}


def test_the_sizes_are_those_of_the_commands():
    assert SIZES["bench"].most == 3, "as many as a timed sweep grades at once"
