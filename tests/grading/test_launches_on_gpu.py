"""The launches of a case on a GPU, which are counted by Triton's hook and compiled for that GPU."""

import pytest

from common.errors import Note
from common.grading.sweep import Sweep
from common.spec import DIRECTIONS
from tests.support.rotating import OP, PLAIN, SOURCE, WAYS
from tests.support.switches import INTERPRET, solution_text
from tests.support.workers import written


@pytest.mark.parametrize(
    ("way", "noted"), [("kernel", False), ("unless on a CPU", True), ("caught", True)]
)
def test_on_a_gpu_a_note_says_where_no_kernel_was_launched(tmp_path, way, noted):
    case = next(case for case in OP.tier("smoke", "cuda") if case.name == PLAIN)
    solution = written(tmp_path, SOURCE + WAYS[way])
    with Sweep("cuda") as sweep:
        (graded,) = sweep.grade(OP, [case], [solution])
    for direction in DIRECTIONS:
        verdict = graded.verdicts[direction]
        assert verdict.verdict == "PASSED", verdict
        assert (Note("NO_KERNEL") in verdict.notes) == noted


@pytest.mark.parametrize("switch", INTERPRET)
def test_no_switch_interprets_a_kernel_on_a_gpu(tmp_path, switch):
    solution = written(tmp_path, solution_text(**INTERPRET[switch]))
    with Sweep("cuda") as sweep:
        (graded,) = sweep.grade(OP, [next(OP.cases("smoke"))], [solution])
    assert graded.verdicts["forward"].verdict == "COMPILE_ERROR", graded.verdicts
    assert "power of 2" in graded.verdicts["forward"].reason
