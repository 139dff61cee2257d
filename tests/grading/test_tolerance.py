"""The numeric rule, each of its clauses by itself."""

from functools import reduce

import pytest
import torch

from common import ops
from common.draws import Draws
from common.grading.problem import make_problem
from common.grading.tolerance import Budget, budget_of, check_values, larger, ulp

ROPE = ops.load("rope")
CASE = next(ROPE.cases("smoke"))
LARGE = torch.linspace(-2, 2, 2000, dtype=torch.float64)


def budget(rms, largest):
    return Budget(rms, torch.tensor(largest, dtype=torch.float64))


BUDGET = budget(1e-3, 4e-3)


def wrong(error, truth=LARGE, budget=BUDGET, slack=2.0, dtype=torch.float32):
    return check_values((truth + error).to(dtype), truth, budget, slack)


def spread(rms: float) -> torch.Tensor:
    """An error of this rms, of one size everywhere and either sign."""
    return rms * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(1000)


@pytest.mark.parametrize(("slack", "passes"), [(2.0, 1.0), (2.0, 1.9), (4.0, 3.9)])
def test_rms_error_may_be_slack_times_eagers(slack, passes):
    found, ratio = wrong(spread(passes * 1e-3), slack=slack)
    assert found is None and ratio == pytest.approx(passes, rel=1e-3)
    found, ratio = wrong(spread(1.1 * slack * 1e-3), slack=slack)
    assert f"{slack * 1e-3:g} allowed: {slack:g} times eager's" in found.text
    assert ratio == pytest.approx(1.1 * slack, rel=1e-3)


def test_one_element_may_err_twice_slack_times_eagers_largest():
    error = torch.zeros(2000, dtype=torch.float64)
    error[1234] = 2 * 2 * 4e-3 * 0.99
    assert wrong(error, budget=budget(None, 4e-3))[0] is None
    error[1234] *= 1.03
    found, _ = wrong(error, budget=budget(None, 4e-3))
    assert found.index == (1234,)
    assert "1 of 2000 wrong" in found.text


def test_one_ulp_is_always_allowed():
    truth = torch.tensor([1.0, 0.3, 100.0, 1e-30], dtype=torch.float64)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        up = torch.nextafter(truth.to(dtype), torch.full((4,), torch.inf, dtype=dtype))
        exact = truth.to(dtype).double()
        assert torch.equal(ulp(exact, dtype)[:3], (up.double() - exact)[:3])
        assert check_values(up, exact, budget(None, 0.0), 2.0)[0] is None
        twice = torch.nextafter(up, torch.full((4,), torch.inf, dtype=dtype))
        assert check_values(twice, exact, budget(None, 0.0), 2.0)[0] is not None


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("rms", [1e6, None])
def test_nothing_infinite_passes(value, rms):
    error = torch.zeros(2000, dtype=torch.float64)
    error[7] = value
    found, _ = wrong(error, budget=budget(rms, 1e9))
    assert found.index == (7,)


def test_the_first_wrong_element_is_told_with_what_is_allowed_and_what_came():
    error = torch.zeros(20, 100, dtype=torch.float64)
    error[3, 5] = error[4, 1] = 1.0
    found, _ = check_values((LARGE.view(20, 100) + error).float(), LARGE.view(20, 100), BUDGET, 2.0)
    assert found.index == (3, 5)
    assert found.text.startswith("expected -1.3896948 ± 0.016, got -0.38969484 (2 of 2000 wrong")


def test_slices_are_judged_by_themselves_where_they_are_apart():
    case = next(case for case in ROPE.cases("smoke") if case.values == "apart")
    problem = make_problem(ROPE, case, Draws(0), "cpu")
    truth, budget = problem.truth["output"], problem.budgets["output"]
    small = truth.clone()
    small[0] = 0
    assert truth[0].abs().max() < 1e-5 < 1e5 < truth[-1].abs().max()
    found, _ = check_values(small.float(), truth, budget, problem.slack)
    assert found and found.index[0] == 0


MAGNITUDES = torch.tensor([[1.0], [1e3], [1e6], [1e9]], dtype=torch.float64)
"""Of four slices."""


def test_a_slice_in_which_eager_is_lucky_may_err_as_the_others_do():
    truth = torch.linspace(0.5, 1, 200, dtype=torch.float64) * MAGNITUDES
    eager = (truth + 1e-6 * MAGNITUDES).float()
    eager[1] = truth[1]
    budget = budget_of(eager, truth, apart=True)
    assert check_values((truth + 7e-6 * MAGNITUDES).float(), truth, budget, 4.0)[0] is None
    found, _ = check_values((truth + 9e-6 * MAGNITUDES).float(), truth, budget, 4.0)
    assert found.index == (0, 0)
    assert found.text.startswith("expected 0.5 ± 8.2e-06, got "), "that of its own slice"


def test_one_slice_in_which_eager_errs_widely_widens_no_other():
    truth = torch.linspace(0.5, 1, 200, dtype=torch.float64) * MAGNITUDES
    eager = (truth + 1e-6 * MAGNITUDES).float()
    eager[3] += 1e-2 * MAGNITUDES[3]
    budget = budget_of(eager, truth, apart=True)
    found, _ = check_values((truth + 9e-6 * MAGNITUDES).float(), truth, budget, 4.0)
    assert found.index == (0, 0)
    assert found.mask.sum(1).tolist() == [200, 200, 200, 0]


def test_a_draw_of_larger_values_may_err_in_proportion():
    truth = torch.linspace(500, 1000, 100, dtype=torch.float64)
    lucky = budget_of(truth.float(), truth.float().double())
    others = [budget_of((truth / size + 1e-6).float(), truth / size) for size in (1e3, 1e3, 2e3)]
    budget = reduce(larger, others, lucky)
    assert check_values((truth + 4e-3).float(), truth, budget, 4.0)[0] is None
    assert check_values((truth + 4e-3).float(), truth, lucky, 4.0)[0] is not None
    assert check_values((truth + 2e-2).float(), truth, budget, 4.0)[0] is not None


def test_a_result_of_zeros_has_eagers_error():
    zeros = torch.zeros(4, 3)
    budget = budget_of(zeros, zeros.double(), apart=True)
    assert check_values(zeros, zeros.double(), budget, 2.0)[0] is None
    assert check_values(zeros + 1e-30, zeros.double(), budget, 2.0)[0] is not None
