"""Problems: what is drawn for a case, and what is compared with, which is computed once."""

import pytest
import torch

from common import ops
from common.draws import Draws
from common.grading import oracle
from common.grading.problem import Problem, make_problem
from common.grading.variations import Change, allows, changed
from common.ops._draw import draw
from common.spec import OUTPUT

ROPE, HALF = ops.load("rope"), ops.load("rotate_half")
CASE = next(case for case in ROPE.cases("smoke") if case.name == "sbhd-7x2x3x16-float32")
CASES = [case for case in HALF.cases("smoke") if not case.far_bytes][:4]


def test_the_oracle_is_in_float64_freqs_too():
    arguments, upstream = draw(ROPE, CASE, 1, "cpu")
    truth = oracle.truth(ROPE, arguments, upstream)
    assert {tensor.dtype for tensor in truth.values()} == {torch.float64}
    doubled = arguments | {"t": arguments["t"].double(), "freqs": arguments["freqs"].double()}
    assert torch.equal(truth[OUTPUT], ROPE.reference(**doubled))
    # the angles rounded to float32 before their cosine would be another truth
    assert not torch.equal(truth[OUTPUT].float(), ROPE.reference(**arguments))


def test_few_elements_get_the_largest_error_of_eight_draws():
    one = Problem(ROPE, CASE, "cpu", *draw(ROPE, CASE, 5, "cpu"), Draws(0))
    eager = oracle.eager(ROPE, one.arguments, one.upstream)[OUTPUT].double()
    lucky = (eager - oracle.truth(ROPE, one.arguments, one.upstream)[OUTPUT]).abs().max().item()
    budgets = [make_problem(ROPE, CASE, Draws(seed), "cpu").budgets[OUTPUT] for seed in (5, 6)]
    assert budgets[0].rms is None
    assert budgets[0].largest > lucky or budgets[1].largest > lucky
    assert min(budget.largest for budget in budgets) >= lucky / 2


@pytest.mark.parametrize("name", ["rope", "masked_linear"])
def test_in_another_dtype_the_values_are_normal(name):
    """A right kernel of float16 may flush what is subnormal in float32."""
    op, ranges = ops.load(name), []
    for case in op.cases("smoke"):
        if case.values != "normal" and case.dtype == "float16":
            one = make_problem(op, case, Draws(0), "cpu")
            if allows(one, Change.FLOAT32):
                other = changed(one, Change.FLOAT32).arguments[op.differentiable[0]]
                ranges.append((other.abs() > 1e-3).double().mean().item())
    assert ranges and min(ranges) > 0.9


@pytest.mark.parametrize(
    ("body", "computed"), [("raise NotImplementedError", False), ("return x.clone()", True)]
)
def test_an_unsupported_case_needs_no_oracle(graded_source, body, computed):
    source = f"def rotate_half(x, *, interleaved=False):\n    {body}\n"
    found = graded_source(HALF, CASES, source)
    assert len(found) == len(CASES)
    assert all(bool(each.problem.budgets) == computed for each in found)
