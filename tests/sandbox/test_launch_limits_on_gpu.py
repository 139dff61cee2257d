"""A GPU refuses, leaves out and runs the same grids as the harness without a GPU."""

import pytest
import torch
import triton
import triton.language as tl

from common.sandbox.target import GRID, LaunchRefused, checked


@triton.jit
def _mark(y):
    if tl.program_id(0) + tl.program_id(1) + tl.program_id(2) == 0:
        tl.store(y, 1)


@pytest.mark.parametrize("grid", [
    (GRID[0],), (GRID[0] + 1,), (2, GRID[1]), (2, GRID[1] + 1), (2, 1, GRID[2]),
    (2, 1, GRID[2] + 1), (0, GRID[1] + 1), (-1,), (2, -3, -4), (2**16, 2**15), (2**17, 2**15),
    (1.0,),
])  # fmt: skip
def test_a_gpu_launches_the_grids_that_are_accepted_and_no_others(grid):
    y = torch.zeros(1, dtype=torch.int32, device="cuda")
    try:
        sizes = checked(grid)
    except TypeError:
        with pytest.raises(TypeError):
            _mark[grid](y)
    except LaunchRefused as refused:
        if "32 bits" in str(refused):
            _mark[grid](y)
        else:
            with pytest.raises((RuntimeError, OverflowError)):
                _mark[grid](y)
        assert not int(y)
    else:
        _mark[grid](y)
        assert int(y) == (min(sizes) > 0)
