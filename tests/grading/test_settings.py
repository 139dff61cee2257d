"""Whatever a solution does to its environment, it is judged as without it."""

from __future__ import annotations

import pytest

from common import ops, wire
from common.sandbox.backend import FIXED_SETTINGS
from tests.support.switches import SWITCHES, solution_text
from tests.support.workers import ask, workers, written

OP = ops.load("rotate_half")
CASE = next(OP.cases("smoke"))
KEEPS = """
from triton import knobs

def rotate_half(x, *, interleaved=False):
    raise NotImplementedError

for name in {names}:
    group, name = getattr(knobs, name.split(".")[0]), name.split(".")[1]
    before = getattr(group, name)
    setattr(group, name, not before)
    assert getattr(group, name) is before, name
    delattr(group, name)
    group.reset()
    assert getattr(group, name) is before, name
"""


@pytest.mark.parametrize("switch", SWITCHES)
def test_no_switch_keeps_a_kernel_from_being_compiled(compiler, tmp_path, switch):
    solution = written(tmp_path, solution_text(**SWITCHES[switch]))
    with compiler() as ours:
        fault = ours.faults(OP, CASE, solution)["forward"]["reason"]
    assert "power of 2" in fault


def test_switches_accuse_no_kernel_that_compiles(compiler, tmp_path):
    first = "\n".join(parts.get("first", "") for parts in SWITCHES.values())
    source = solution_text(first=first, kernel="narrow", width="64")
    with compiler() as ours:
        assert ours.faults(OP, CASE, written(tmp_path, source)) == {}


@pytest.mark.parametrize(
    "first",
    ["os.environ['TRITON_INTERPRET'] = '0'", "knobs.runtime.interpret = False",
     "driver.set_active(Everything())", "os.environ['CUDA_VISIBLE_DEVICES'] = '0'"],
)  # fmt: skip
def test_a_kernel_is_interpreted_whatever_its_file_sets(worker, first):
    source = solution_text(first=first, width="4")
    assert ask(worker(source, "rotate_half"))[1] == [-1.0, -2.0, -3.0, -4.0]


def test_a_setting_that_decides_the_verdict_cannot_be_changed(target, tmp_path):
    with workers(target, tmp_path) as start:
        reply = start(KEEPS.format(names=FIXED_SETTINGS), "rotate_half").ask(wire.RunCalls())
    assert reply == {}
