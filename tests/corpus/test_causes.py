"""Whoever makes a mistake that an op's file names is told that one; test_wrong.py has kernels."""

import dataclasses
import functools
from types import SimpleNamespace

import pytest
import torch

from common import ops
from common.draws import Draws
from common.grading import diagnosis, oracle
from common.grading.compare import wrong_values
from common.grading.problem import make_problem
from common.spec import DIRECTIONS, is_output
from common.verdicts import Verdict

pytestmark = pytest.mark.slow

MISTAKES = [(op, name) for op in ops.names() for name in ops.load_mistakes(op)]


@pytest.fixture(scope="module")
def cases_of():
    """Return a function that returns an op's smoke cases as graded where a mistake is made."""

    @functools.cache
    def problems(name):
        op = ops.load(name)
        cases = (case for case in op.cases("smoke") if not case.far_bytes)
        return [make_problem(op, case, Draws(5), "cpu") for case in cases]

    @functools.cache
    def cases_of(name, mistake):
        function = ops.load_mistakes(name)[mistake]
        return [made(ops.load(name), function, problem) for problem in problems(name)]

    return cases_of


def results_of(op, mistake, problem):
    """Return the results of a mistake in the case's dtype, or nothing if it leads outside."""
    changed = dataclasses.replace(op, reference=mistake)
    gradients = "backward" in problem.case.directions
    try:
        values = oracle.truth(changed, problem.arguments, problem.upstream, gradients)
    except NotImplementedError:
        return {}
    dtype = getattr(torch, problem.case.dtype)
    return {name: value.detach().to(dtype) for name, value in values.items()}


def made(op, mistake, problem):
    """Return a case as it is graded where a solution makes the mistake."""
    results, verdicts = results_of(op, mistake, problem), {}
    for direction in problem.case.directions if results else ():
        ours = {
            name: results[name] for name in results if is_output(name) == (direction == "forward")
        }
        wrong = any(wrong_values(problem, name, value)[0] for name, value in ours.items())
        verdict, ours = ("INCORRECT_NUMERICAL", ours) if wrong else ("PASSED", {})
        verdicts[direction] = Verdict(
            "a/b", op.name, problem.case.name, direction, verdict, results=ours
        )
    return SimpleNamespace(
        solution=SimpleNamespace(name="a/b"),
        case=problem.case,
        problem=problem.summary,
        verdicts=verdicts,
    )


@pytest.mark.parametrize(("name", "mistake"), MISTAKES)
def test_whoever_makes_a_mistake_is_told_it(name, mistake, cases_of):
    found = cases_of(name, mistake)
    wrong = tuple(
        direction
        for direction in DIRECTIONS
        if any(direction in one.verdicts and not one.verdicts[direction].fine for one in found)
    )
    (cause,) = diagnosis.causes(found)
    assert (cause.directions, ", or: ".join(cause.mistakes)) == (wrong, mistake)


def usual(case):
    """Return whether nearly every RoPE outside of TransformerEngine answers the case."""
    return (
        case.angles == "paired"
        and case.tensor_format != "thd"
        and not (case.interleaved or case.starts)
        and case.cp_size == 1
    )


@pytest.mark.parametrize("mistake", ops.load_mistakes("rope"))
def test_whoever_answers_few_cases_is_told_it_too(mistake, cases_of):
    found = [each for each in cases_of("rope", mistake) if usual(each.case)]
    causes = [*diagnosis.causes(found)]
    told = {each: cause.mistakes for cause in causes for each in cause.directions}
    for direction in DIRECTIONS:
        verdicts = [each.verdicts[direction] for each in found if direction in each.verdicts]
        if sum(not verdict.fine for verdict in verdicts) >= diagnosis.FEWEST:
            assert mistake in told[direction]
