"""Whatever a solution does to its environment, it is judged as without it."""

from __future__ import annotations

import pytest

from common import ops
from tests.support.switches import SWITCHES, solution_text
from tests.support.workers import ask, written

OP = ops.load("rotate_half")
CASE = next(OP.cases("smoke"))


@pytest.mark.parametrize("switch", SWITCHES)
def test_no_switch_keeps_a_kernel_from_being_compiled(compiler, tmp_path, switch):
    solution = written(tmp_path, solution_text(**SWITCHES[switch]))
    with compiler() as ours:
        fault = ours.faults(OP, CASE, solution)["forward"]["reason"]
    assert "power of 2" in fault


@pytest.mark.parametrize(
    "first",
    ["os.environ['TRITON_INTERPRET'] = '0'", "knobs.runtime.interpret = False",
     "driver.set_active(Everything())", "os.environ['CUDA_VISIBLE_DEVICES'] = '0'"],
)  # fmt: skip
def test_a_kernel_is_interpreted_whatever_its_file_sets(worker, first):
    source = solution_text(first=first, width="4")
    assert ask(worker(source, "rotate_half"))[1] == [-1.0, -2.0, -3.0, -4.0]
