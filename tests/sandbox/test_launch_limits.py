"""Which grids are launched: CUDA's limits of each axis, and what Triton leaves out."""

import pytest
from triton.runtime.jit import JITFunction

from common.sandbox.target import GRID, LaunchRefused, checked
from tests.support.workers import COPIES, ask, launched

X, Y, Z = GRID
LAUNCHED = [(1,), (X,), (3, Y), (2, 1, Z), [4, 5], (2**16, 2**15 - 1), (2**17 + 1, 2**15)]
NOTHING = [(0,), (0, Y + 1), (5, 0, 3), (-1,), (3, -2), (-3, -3, -3)]
REFUSED = {
    (X + 1,): f"axis x .*1 to {X:,}", (9, Y + 1): f"axis y .*1 to {Y:,}",
    (1, 1, 1 << 40): f"axis z .*1 to {Z:,}", (2, -3, -4): "axis y",
    (2**16, 2**15): "in 32 bits", (2**17, 2**15): "in 32 bits", (2**30, 3): "in 32 bits",
}  # fmt: skip


@pytest.mark.parametrize("grid", [*LAUNCHED, *NOTHING])
def test_a_grid_within_the_limits_or_without_programs_is_no_fault(grid):
    assert checked(grid) == (*grid, 1, 1)[:3]


@pytest.mark.parametrize(("grid", "said"), REFUSED.items())
def test_a_grid_that_cuda_refuses_or_triton_does_not_run_is_refused(grid, said):
    with pytest.raises(LaunchRefused, match=said):
        checked(grid)


@pytest.mark.parametrize("size", [2.0, "3", None])
def test_a_size_that_is_no_integer_is_no_grid(size):
    with pytest.raises(TypeError):
        checked((1, size))


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ("(1, 65_536)", "axis y of the grid (1, 65536, 1) takes 1 to 65,535 programs"),
        ("lambda arguments: (2, 1, 70_000)", "axis z of the grid (2, 1, 70000)"),
        ("(1 << 31,)", "axis x of the grid (2147483648, 1, 1)"),
        ("(1 << 16, 1 << 15)", "in 32 bits"),
    ],
)
def test_the_interpreter_refuses_a_launch_with_its_line(worker, grid, words):
    reply, _ = ask(worker(launched(COPIES, grid=grid), "rotate_half"))
    assert (reply["verdict"], reply["kind"]) == ("RUNTIME_ERROR", "launch")
    line = f", line 16 of rotate_half.py: kernel[{grid}](x, y, 64)"
    assert words in reply["reason"] and line in reply["reason"]


def test_this_process_has_tritons_own_launch():
    """Whatever pytest has loaded: the interpreter's patches cannot be taken back."""
    assert JITFunction.run.__module__ == JITFunction.__module__
