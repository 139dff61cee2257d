"""A function like `rope`'s reference, held against the oracle as every solution is."""

import torch

from common.draws import Draws
from common.grading.problem import make_problem
from common.grading.tolerance import check_values
from common.ops.rope import OP
from common.spec import OUTPUT


def first_wrong(function, case, device, **options):
    """Return what the function, called as TransformerEngine's, has wrong; None if nothing is."""
    problem = make_problem(OP, case, Draws(7), device)
    arguments = dict(problem.arguments)
    t = arguments["t"] = arguments["t"].detach().requires_grad_()
    output = function(**arguments, **options)
    (gradient,) = torch.autograd.grad(output, t, problem.upstream["upstream"])
    for name, result in ((OUTPUT, output), ("t", gradient)):
        assert result.dtype == t.dtype
        wrong, _ = check_values(
            result.detach(), problem.truth[name], problem.budgets[name], problem.slack
        )
        if wrong is not None:
            return f"{name} at {wrong.index}: {wrong.text}"
    return None
