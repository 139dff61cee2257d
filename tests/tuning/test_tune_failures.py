"""The search: configurations and cases that fail, and kernels that are declared wrongly."""

from __future__ import annotations

import pytest

from common.errors import UserError
from common.grading.sweep import CRASH_LIMIT
from tests.support.tuning import NOTHING, SOLUTION

pytestmark = pytest.mark.usefixtures("as_on_a_gpu")

# --- what fails -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_fails_is_skipped_and_counted(alice):
    """Among them more crashes than a graded solution has lives, and one that never ends."""
    space = (1, 100, 101, 102, 103, 104, 105, 106, 2)
    assert CRASH_LIMIT < 4
    found, clock = alice.write(space).run(deadline=2.0)
    assert alice.blocks == {"turn": {80: 2, 512: 2}, "back": {80: 2, 512: 2}}
    assert len(clock.calls) == 4 * len(space)
    for one in found:
        failed = [point for point in one.trials if point.microseconds is None]
        assert [point.verdict for point in failed] == [
            "COMPILE_ERROR", *["CRASHED"] * 4, "TIMEOUT", "RUNTIME_ERROR",
        ]  # fmt: skip
        lines = list(one.lines())
        assert "    2 measured, 7 skipped" in lines
        assert any(line.startswith("    skipped 4: CRASHED: ") for line in lines)
        assert any("skipped 1: COMPILE_ERROR: " in x and "shared memory" in x for x in lines)


@pytest.mark.slow
def test_an_error_that_may_have_broken_the_device_ends_the_process(alice, monkeypatch):
    """An illegal access leaves every later call of its process failing."""
    condition = "if block == 106 or os.environ.get('BROKEN')"
    broken = SOLUTION.replace("if block == 106", condition).replace(
        "raise RuntimeError", "os.environ['BROKEN'] = 'yes'; raise RuntimeError"
    )
    found, _ = alice.write((1, 106, 2), text=broken).run()
    assert [p.verdict for p in found[0].trials] == ["PASSED", "RUNTIME_ERROR", "PASSED"]
    # in the call that shows what is asked for, backward's default breaks what forward is timed in
    broken = broken.replace('"back", default={{"BLOCK": 1}}', '"back", default={{"BLOCK": 106}}')
    found, _ = alice.write((1, 2), text=broken).run()
    assert [p.verdict for p in found[0].trials] == ["PASSED"] * 2


def test_a_default_that_fails_hides_no_kernel_behind_it(alice):
    """What backward asks for shows once forward has something that works."""
    found, _ = alice.write((1, 2), default=100).run()
    assert alice.blocks == {"turn": {80: 2, 512: 2}, "back": {80: 2, 512: 2}}
    assert "    default COMPILE_ERROR, best 20.00 us" in list(found[0].lines())[1]
    assert not alice.said


def test_a_case_whose_call_fails_whatever_is_chosen_is_said(alice):
    found, _ = alice.write((100,), default=100).run()
    assert [one.winner for one in found] == [None, None]
    assert alice.saved["kernels"] == {}
    assert "no configuration passed" in list(found[0].lines())[1]
    assert len(alice.said) == 2
    assert all("COMPILE_ERROR" in line and "shared memory" in line for line in alice.said)


@pytest.mark.slow
def test_a_wrong_winner_is_dropped_and_the_next_takes_its_place(alice):
    times = {1: 30.0, 2: 20.0, 107: 10.0}
    found, _ = alice.write((1, 2, 107)).run(lambda shape, block: times[block])
    assert alice.blocks == {"turn": {80: 2, 512: 2}, "back": {80: 2, 512: 2}}
    assert len(alice.said) == 4
    for line in alice.said:
        assert "dropped {'BLOCK': 107}, which is INCORRECT_NUMERICAL: " in line
    assert [one.winner.config["BLOCK"] for one in found] == [2, 2, 2, 2]


@pytest.mark.slow
def test_a_winner_is_graded_in_each_direction_that_asks_for_it(alice):
    """Right in forward and wrong in backward, which looks up the same shape."""
    text = SOLUTION.replace("return -_run(back, grad)", "return _wrong(_run(turn, grad))")
    text += """

def _wrong(grad):
    forced = [c["BLOCK"] for c in (turn.forced or {{}}).values()]
    return grad if 2 in forced else -grad
"""
    _, clock = alice.write((1, 2), text=text).run(lambda shape, block: 30.0 - block)
    assert alice.blocks == {"turn": {80: 1, 512: 1}}
    assert {direction for direction, _ in clock.calls} == {"forward"}
    assert all("INCORRECT_NUMERICAL" in line for line in alice.said)


# --- what is declared -----------------------------------------------------------------------------


def test_a_solution_that_declares_nothing_is_told_so(alice):
    found, clock = alice.write(text=NOTHING).run()
    assert found is None
    assert alice.said == ["alice/rotate_half declares no TUNED: there is nothing to search"]
    assert not clock.calls
    assert not (alice.folder / "configs").exists()


@pytest.mark.slow
def test_it_hinders_no_other(alice):
    found, _ = alice.write(text=NOTHING).write(name="rotate_half_again").run()
    assert {one.task.solution for one in found} == {"alice/rotate_half_again"}


def test_what_does_not_import_is_a_fault(alice):
    alice.write(text="import nothing_of_the_kind\n")
    with pytest.raises(UserError, match="alice/rotate_half: COMPILE_ERROR: does not import"):
        alice.run()


@pytest.mark.parametrize(
    "declared",
    [
        "TUNED = (Tuned('a', default=7, space=[]),)",
        "TUNED = (Tuned('a', default={{'A': 1}}, space=[{{'B': 1}}]),)",
        "TUNED = (Tuned('a', default={{'A': 1}}, space=[7]),)",
        "TUNED = (turn, Tuned('turn', default={{'A': 1}}, space=[]))",
    ],
)
def test_what_is_declared_wrongly_is_a_fault(alice, declared):
    alice.write(text=SOLUTION + declared)
    with pytest.raises(UserError) as caught:
        alice.run()
    assert "alice" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("declared", ["TUNED = (7,)", "TUNED = 7", "turn.default = {{'A': torch}}"])
def test_what_is_no_declaration_at_all_is_a_fault(alice, declared):
    alice.write(text=SOLUTION + declared)
    with pytest.raises(UserError, match=r"alice/rotate_half: RUNTIME_ERROR: (Attribute|Type)Error"):
        alice.run()


@pytest.mark.slow
def test_a_kernel_that_two_solutions_share_is_searched_once(alice):
    shared = SOLUTION.replace('"""x turned', '"""another, which turned')
    alice.write().write(text=shared, name="rotate_half_again")
    found, clock = alice.run()
    assert len(clock.calls) == 12
    assert {one.task.solution for one in found} == {"alice/rotate_half"}
    before = alice.file.read_bytes()
    alice.file.unlink()
    found, clock = alice.run(only="rotate_half_again")
    assert (found, clock.calls) == ([], [])
    assert alice.file.read_bytes() == before


def test_two_kernels_of_one_name_are_a_fault(alice):
    alice.write().write(space=(1, 2), name="rotate_half_again")
    with pytest.raises(UserError, match="two kernels named 'turn'"):
        alice.run()
