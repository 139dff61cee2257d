"""A GPU's own compiler judges, whatever a solution does to its environment."""

import pytest

from common import ops
from common.grading.sweep import Sweep
from tests.support.switches import INTERPRET, solution_text
from tests.support.workers import written

OP = ops.load("rotate_half")
CASE = next(OP.cases("smoke"))


@pytest.mark.parametrize("switch", INTERPRET)
def test_no_switch_interprets_a_kernel_on_a_gpu(tmp_path, switch):
    solution = written(tmp_path, solution_text(**INTERPRET[switch]))
    with Sweep("cuda") as sweep:
        (graded,) = sweep.grade(OP, [CASE], [solution])
    assert graded.verdicts["forward"].verdict == "COMPILE_ERROR", graded.verdicts
    assert "power of 2" in graded.verdicts["forward"].reason
