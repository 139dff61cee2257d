"""Two seeds' own checks, with their shapes, tolerances and counts.

zetwhite's value_check.py: 512x2x8x64, one angle for each pair, one draw, 1e-5. lkm2835's
test_assert_close: three shapes of batch 1 whose first half turns, every feature by an angle of its
own, 100 draws each, torch.testing's tolerance of float32, and an upstream gradient of ones. Both
compared with TransformerEngine's function, which plain torch stands for here. On a GPU every
contributor's solution passes them at their size, without one cut down.
"""

import dataclasses

import pytest
import torch

from common import solutions
from common.draws import Draws
from common.grading import oracle
from common.grading.call_plan import plan_of
from common.grading.execution import Execution
from common.grading.problem import OUTPUT, Problem
from common.ops import rope
from common.ops._draw import draw
from common.ops.rope import RopeCase

ROPES = [solution for solution in solutions.discover() if solution.op == "rope"]
every_solution = pytest.mark.parametrize("solution", ROPES, ids=lambda solution: solution.name)


def cut(case: RopeCase, device: str) -> RopeCase:
    """Cut a case, not its widths, to what Triton's interpreter runs in a second."""
    if device == "cuda":
        return case
    return dataclasses.replace(case, s=min(case.s, 9), h=min(case.h, 2))


def results(solution, case, seed, ones, sweep, device):
    """Return (name, the solution's result, plain torch's) of the output and of the gradient."""
    case = cut(case, device)
    arguments, upstream = draw(rope.OP, case, seed, device)
    upstream = torch.ones_like(upstream) if ones else upstream
    expected = oracle.eager(rope.OP, arguments, upstream)
    drawn = arguments, upstream
    problem = Problem(rope.OP, case, device, *drawn, lambda: (expected, {}), Draws(seed))
    plan = plan_of(problem, solution)
    execution = Execution(problem, sweep.worker(solution), plan)
    for request in (execution.forward, execution.backward):
        reply = request(plan.first)
        assert "verdict" not in reply, reply
    return [(name, execution.result(name, plan.first), expected[name]) for name in (OUTPUT, "t")]


@every_solution
def test_zetwhites_value_check(solution, sweep, device):
    case = RopeCase(s=512, b=2, h=8, d=64, d2=64, angles="paired")
    for name, result, expected in results(solution, case, 1, False, sweep, device):
        torch.testing.assert_close(
            result, expected, atol=1e-5, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


@every_solution
@pytest.mark.parametrize(("s", "h", "d"), [(64, 16, 64), (128, 16, 128), (32, 8, 256)])
def test_lkm2835s_assert_close(solution, s, h, d, sweep, device):
    case = RopeCase(s=s, b=1, h=h, d=d, d2=d // 2, angles="model")
    for seed in range(100 if device == "cuda" else 3):
        for name, result, expected in results(solution, case, seed, True, sweep, device):
            torch.testing.assert_close(
                result, expected, msg=lambda text, name=name: f"{name}: {text}"
            )
