"""Programs of a launch that run at once do what they do one by one, and Python runs few times."""

from __future__ import annotations

import pytest

from tests.support.interpreting import results

PROGRAMS = 12
WAYS = ("", " backwards")
PYTHON = {
    "in_rows": 1, "blocks": 1, "one_far": 1, "summed": 1, "two_ways": 3,
    "by_value": 3,
}  # fmt: skip
"""The kernels whose programs run at once, and the times that their Python runs."""
ALONE = (
    "over_the_next", "in_place", "in_halves", "in_order", "ticket", "rows_of_lengths",
)  # fmt: skip
"""The kernels whose programs need one another, or all take another way."""
FAILING = ("past_the_end", "assumed", "swallows")


@pytest.fixture(scope="module")
def alone():
    return results("together", "alone")


@pytest.fixture(scope="module")
def together():
    return results("together", "together")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [*PYTHON, *ALONE, *FAILING])
def test_programs_do_at_once_what_they_do_one_by_one(alone, together, name, way):
    one_by_one, found = alone[f"{name}{way}"], together[f"{name}{way}"]
    assert any(one_by_one["out"]) or name in FAILING
    for what in ("out", "fault", "failed"):
        assert found[what] == one_by_one[what]
    assert bool(one_by_one["fault"] or one_by_one["failed"]) == (name in FAILING)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PYTHON)
def test_python_runs_once_for_each_way_through_the_kernel(together, name, way):
    found = together[f"{name}{way}"]
    assert found["together"] and found["python"] == PYTHON[name]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ALONE)
def test_programs_that_need_one_another_run_one_by_one(together, name, way):
    found = together[f"{name}{way}"]
    assert not found["together"] and found["python"] >= PROGRAMS


def test_a_fault_of_a_later_program_is_told_from_the_kernels_own_line(together):
    found = together["past_the_end"]
    assert "tl.load(x + lanes + (tl.program_id(0) // 7) * 64)" in found["fault"]
    assert found["failed"].endswith("in past_the_end")


def test_a_kernel_that_catches_everything_leaves_a_fault(together):
    assert "reads x + " in together["swallows"]["fault"]


def test_an_assumption_of_a_later_program_fails_in_the_kernel(together):
    assert "Assume failed" in together["assumed"]["failed"]
    assert together["assumed"]["failed"].endswith("in assumed")
