"""Which grids are launched: CUDA's limits of each axis, and what Triton leaves out."""

from __future__ import annotations

import random

import pytest

from common.sandbox.target import GRID, LaunchRefused, checked
from tests.support.workers import ask, workers

X, Y, Z = GRID
LAUNCHES = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, y):
    if tl.program_id(0) + tl.program_id(1) + tl.program_id(2) == 0:
        for i in range(4):
            tl.store(y + i, i)


def rotate_half(x):
    y = torch.zeros_like(x)
    kernel[{grid}](x, y)
    return y
"""


@pytest.mark.parametrize("grid", [(1,), (X,), (3, Y), (2, 1, Z), [4, 5], (2**16, 2**15 - 1)])
def test_a_grid_within_the_limits_is_launched_on_three_axes(grid):
    assert checked(grid) == (*grid, 1, 1)[:3]


@pytest.mark.parametrize("grid", [(0,), (0, Y + 1), (5, 0, 3), (-1,), (3, -2), (-3, -3, -3)])
def test_a_grid_without_programs_is_no_fault_as_triton_launches_nothing(grid):
    assert checked(grid) == (*grid, 1, 1)[:3]


@pytest.mark.parametrize("axis", range(3))
def test_a_size_beyond_the_limit_of_its_axis_is_refused_by_name(axis):
    for _ in range(20):
        grid = [random.randint(1, 9) for _ in GRID]
        grid[axis] = GRID[axis] + random.randint(1, 1 << random.randint(1, 40))
        with pytest.raises(LaunchRefused, match=f"axis {'xyz'[axis]} .*1 to {GRID[axis]:,}"):
            checked(grid)


def test_two_negative_sizes_reach_cuda_which_refuses_them():
    with pytest.raises(LaunchRefused, match="axis y"):
        checked((2, -3, -4))


@pytest.mark.parametrize("grid", [(2**16, 2**15), (2**17, 2**15), (2**30, 3)])
def test_programs_that_wrap_in_32_bits_are_refused_since_none_would_run(grid):
    assert all(size <= most for size, most in zip(grid, GRID, strict=False))
    with pytest.raises(LaunchRefused, match="in 32 bits"):
        checked(grid)
    checked((2**17 + 1, 2**15))  # wraps to a positive number, and is launched whole


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
def test_the_interpreter_refuses_a_launch_with_its_line(fork_server, tmp_path, grid, words):
    with workers(fork_server, tmp_path) as start:
        reply, _ = ask(start(LAUNCHES.format(grid=grid), "rotate_half"))
    assert (reply["verdict"], reply["kind"]) == ("RUNTIME_ERROR", "launch")
    assert (
        words in reply["reason"]
        and f", line 16 of rotate_half.py: kernel[{grid}](x, y)" in (reply["reason"])
    )
