"""Inputs whose elements lie gigabytes apart take the memory of their elements alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from common import ops
from common.draws import Draws
from common.grading import oracle
from common.grading.grade import grade_case
from common.grading.problem import Problem
from common.grading.tolerance import budget_of
from tests.support.workers import CHOOSE, chosen, workers

HALF = ops.load("rotate_half")
CASE = next(iter(HALF.cases("smoke")))
FAR = 2**30
"""Elements between two rows: the third begins 2^31 elements behind the first."""
MOST = 200 << 20
RIGHT = """
import torch

class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        {first}
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)

    @staticmethod
    def backward(ctx, gradient):
        a, b = gradient.chunk(2, -1)
        return torch.cat((b, -a), -1)

def rotate_half(x):
    return Half.apply(x)
"""


def far(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    tensor = torch.empty_strided((3, 8), (FAR, 1), dtype=dtype)
    return tensor.copy_(torch.randn(3, 8))


@pytest.fixture(scope="module")
def problem():
    x, grad_output = far(), far()
    truth = oracle.truth(HALF, {"x": x}, grad_output)
    eager = oracle.eager(HALF, {"x": x}, grad_output)
    budgets = {name: budget_of(eager[name], truth[name]) for name in truth}
    case = dataclasses.replace(CASE, shape=x.shape)
    return Problem(HALF, case, "cpu", {"x": x}, grad_output, lambda: (truth, budgets), Draws(0))


def resident(process: int | str) -> int:
    """Return the bytes of memory that the process has pages for, shared ones too."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))


@pytest.mark.parametrize(
    ("first", "verdict", "reason"),
    [
        ("pass", "PASSED", ""),
        ("x[2, 3] = 7", "MUTATED_INPUT", "x changed"),
        ("x = x * (x == x[0])", "INCORRECT_NUMERICAL", "output wrong: "),
    ],
)
def test_far_elements_are_laid_checked_and_compared(
    problem, fork_server, tmp_path, monkeypatch, first, verdict, reason
):
    monkeypatch.setattr(CHOOSE, chosen(interleaved=True))
    before = resident("self")
    with workers(fork_server, tmp_path) as start:
        worker = start(RIGHT.format(first=first), "rotate_half")
        found = grade_case(problem, worker)
        grown = resident("self") - before
        theirs = resident(worker._pids[1])
    assert found["forward"].verdict == verdict, found
    assert found["forward"].reason.startswith(reason)
    assert grown < MOST
    assert theirs < resident("self") + MOST
