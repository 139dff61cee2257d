"""Notes on the launches of a case on a GPU, where launches are counted by Triton's hook."""

import pytest

from common.grading.remarks import NO_KERNEL
from common.grading.sweep import Sweep
from common.spec import DIRECTIONS
from tests.support.rotating import OP, PLAIN, SOURCE, WAYS
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
        assert (NO_KERNEL in verdict.notes) == noted
