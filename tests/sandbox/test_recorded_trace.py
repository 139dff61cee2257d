"""A launch's trace: every program does what it would do by itself, and Python runs few times."""

from __future__ import annotations

import re

import pytest
from triton.runtime.interpreter import InterpreterBuilder

from common.sandbox.interpreter import recorded_trace
from tests.support.interpreting import run

PROGRAMS = 12
ROUNDS = ("", " backwards")
PYTHON = {
    "straight": 1,
    "cast": 1,
    "two_ways": 2,
    "by_value": 2,
    "blocks": 1,
    "descriptors": 1,
    "in_order": 1,
    "transposed": 1,
}
"""The times that a kernel's Python runs: once for each way through it."""


@pytest.fixture(scope="module")
def taped():
    return run("taped.py", "taped")


@pytest.fixture(scope="module")
def live():
    return run("taped.py", "live")


@pytest.fixture(scope="module")
def together():
    return run("taped.py", "together")


@pytest.mark.parametrize("how", ["taped", "together"])
@pytest.mark.slow
def test_every_program_does_what_it_does_by_itself(how, live, request):
    ours = request.getfixturevalue(how)
    assert ours.keys() == live.keys()
    for name, found in live.items():
        for what in ("out", "fault", "failed"):
            assert ours[name][what] == found[what], (name, what)


@pytest.mark.parametrize("how", ROUNDS)
def test_programs_that_do_not_need_each_other_run_at_once(together, how):
    found = {name for name, each in together.items() if each["together"]}
    assert {f"in_rows{how}", f"one_way{how}"} <= found
    assert together[f"in_rows{how}"]["python"] == 1


@pytest.mark.parametrize("how", ROUNDS)
@pytest.mark.parametrize(
    "name", ["over_the_next", "in_place", "in_halves", "in_order", "one_far", "straight"]
)
def test_programs_that_do_or_whose_sums_may_round_otherwise_run_in_turn(together, name, how):
    assert not together[f"{name}{how}"]["together"]


def test_the_kernels_without_a_mistake_have_results(live):
    for name, found in live.items():
        if not name.startswith(("past_the_end", "assumed", "pretends", "one_far")):
            assert not found["failed"] and any(found["out"]), name


@pytest.mark.parametrize("name", [f"{name}{how}" for name in PYTHON for how in ROUNDS])
def test_python_runs_once_for_each_way_through_the_kernel(taped, live, name):
    assert live[name]["python"] == PROGRAMS
    assert taped[name]["python"] == PYTHON[name.partition(" ")[0]]


@pytest.fixture(scope="module")
def again():
    return run("taped.py", "again")


AGAIN = {
    "first": 1,
    "other memory": 0,
    "other integers": 0,
    "two programs": 0,
    "one more turn": 1,
    "one turn": 1,
    "one turn again": 0,
    "another dtype": 1,
    "another argument": 1,
    "another constant": 1,
    "a float": 1,
    "another float": 0,
}
"""The times that Python runs in launches one after the other: not where it decides the same."""


@pytest.mark.parametrize("name", AGAIN)
def test_a_later_launch_replays_the_tape_of_one_whose_python_decides_the_same(again, name):
    assert again["launches"][name] == [AGAIN[name], True]


def test_a_launch_that_fails_leaves_no_tape(again):
    assert again["failing"] == [1, 1, 0]


def test_a_tape_that_seldom_holds_is_given_up(taped):
    assert taped["rows_of_lengths"]["python"] == PROGRAMS


def test_a_fault_of_a_later_program_is_told_from_the_kernels_own_line(taped):
    found = taped["past_the_end"]
    assert "tl.load(x + lanes + (tl.program_id(0) // 7) * 64)" in found["fault"]
    assert found["failed"].endswith("in past_the_end")
    assert 1 < found["python"] < 7, "programs before that one were replayed"


def test_a_kernel_that_pretends_to_be_replayed_leaves_a_fault(taped):
    assert taped["pretends"]["fault"] == "an access, whose trace the solution removed"


def test_an_assumption_of_a_later_program_fails_in_the_kernel(taped):
    assert "Assume failed" in taped["assumed"]["failed"]
    assert taped["assumed"]["failed"].endswith("in assumed")


def test_each_operation_that_is_no_function_of_its_operands_has_a_name_that_says_so():
    """By its code: it uses memory, the program's index, or raises; or calls one that does."""
    methods = {name: getattr(InterpreterBuilder, name) for name in dir(InterpreterBuilder)}
    codes = {name: m.__code__ for name, m in methods.items() if hasattr(m, "__code__")}
    telling = re.compile("^(_interpreter|grid_idx|print|materialize_pointers)$")
    found = {name for name, code in codes.items() if any(map(telling.match, code.co_names))}
    while more := {n for n, c in codes.items() if found & set(c.co_names)} - found:
        found |= more
    unnamed = {name for name in found if not recorded_trace.EFFECTS.search(name)}
    assert found >= {"create_masked_load", "create_tensor_pointer_store", "create_atomic_cas"}
    assert unnamed <= {"set_grid_idx"}
