"""Notes on the launches of a case: no kernel ran, or the solution caught a launch's exception."""

import pytest

from common.grading.compiling import Compiler
from common.spec import DIRECTIONS
from tests.support.rotating import CASES, EMPTY, OP, PLAIN, SOURCE, WAYS


@pytest.fixture
def noted(graded_source):
    """Return a function from a way and cases to the kinds of notes by case and direction."""

    def graded(way, *names):
        found = graded_source(OP, [CASES[name] for name in names], SOURCE + WAYS[way])
        every = [verdict for graded in found for verdict in graded.verdicts.values()]
        assert {verdict.verdict for verdict in every} == {"PASSED"}, every
        kinds = {"NO_KERNEL", "CAUGHT"}
        return {(v.case, v.direction): kinds & {n.kind for n in v.notes} for v in every}

    return graded


@pytest.mark.parametrize(
    ("way", "kinds"),
    [("kernel", set()), ("unless on a GPU", {"NO_KERNEL"}), ("by environment", {"NO_KERNEL"}),
     ("caught", {"NO_KERNEL", "CAUGHT"}), ("caught by a helper", {"NO_KERNEL", "CAUGHT"}),
     ("by another kernel", {"CAUGHT"})],
)  # fmt: skip
def test_a_note_says_what_answered_in_place_of_a_kernel(noted, way, kinds):
    assert noted(way, PLAIN) == dict.fromkeys([(PLAIN, "forward"), (PLAIN, "backward")], kinds)


def test_each_case_in_which_torch_answers_is_noted_by_itself(noted):
    half = next(name for name in CASES if name.endswith("float16"))
    found = noted("in float32", PLAIN, half)
    assert found == {
        (case, direction): {"NO_KERNEL"} if case == half else set()
        for case in (PLAIN, half)
        for direction in DIRECTIONS
    }


def test_a_case_that_needs_no_kernel_gets_no_note(noted):
    assert not any(noted("unless on a GPU", EMPTY).values())


def test_a_kernel_that_does_not_compile_is_noted_where_its_exception_is_caught(graded_source):
    """Its type depends on a branch, which the interpreter does not take."""
    branch = "    if half > 99:\n        column = row\n"
    source = SOURCE.replace("    here =", f"{branch}    here =")
    way = WAYS["caught"].replace("(x, 1)", "(x)")
    with Compiler("cpu") as compiler:
        (graded,) = compiler.behind(graded_source(OP, [CASES[PLAIN]], source + way))
    for verdict in graded.verdicts.values():
        note = next(note for note in verdict.notes if note.kind == "CAUGHT")
        assert verdict.verdict == "PASSED"
        assert note.detail.startswith("a kernel does not compile for sm_90: ")
        assert "of rotate_half.py" in note.detail
