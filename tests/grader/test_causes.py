"""No kernel is told a wrong cause, and nearly all of those that name one are told it.

A kernel of tests/wrong whose mistake the op's file of mistakes has says so, `Cause: NAME`.
"""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace

import pytest
import torch

from common import ops, solutions
from common.grading import oracle, what
from common.grading.problem import OUTPUT, make_problem
from common.grading.sweep import Sweep
from common.paths import ROOT
from common.spec import DIRECTIONS
from common.verdicts import Verdict
from tests import corpus

WRONG = [
    solution
    for name in ("wrong", "cheats")
    for solution in solutions.discover(ROOT / "tests" / name)
    if "INCORRECT_NUMERICAL" in corpus.expected(solution).values()
]
EVERY = 5
"""One smoke case in so many is asked of a kernel without a cause."""
MISTAKES = [(op, name) for op in ops.names() for name in ops.load_mistakes(op)]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small tensors take longer on two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def promised(solution):
    """Return the cause that a kernel names, if it names one."""
    found = re.search(r"^Cause: (.+)$", solution.path.read_text(), re.MULTILINE)
    return found and found[1]


# --- kernels --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def told():
    """Return the causes of each kernel, by its name; the two directions may have one each."""
    graded = []
    with Sweep("cpu", deadline=corpus.DEADLINE, keep=True) as sweep:
        for op in map(ops.load, sorted({solution.op for solution in WRONG})):
            cases = list(op.cases("smoke"))
            several = cases[::EVERY]

            def skip(solution, case, several=several):
                return not promised(solution) and case not in several

            graded += sweep.grade(op, cases, WRONG, skip)
    found = {solution.name: [] for solution in WRONG}
    for cause in what.causes(graded):
        found[cause.solution].append(cause.mistake)
    return found


@pytest.mark.parametrize("solution", WRONG, ids=lambda solution: solution.handle)
def test_no_kernel_is_told_a_wrong_cause(solution, told):
    assert set(told[solution.name]) <= {promised(solution)}


def test_nine_in_ten_are_told_theirs(told):
    named = [solution for solution in WRONG if promised(solution)]
    missed = [each.handle for each in named if not told[each.name]]
    assert len(named) >= 20
    assert len(missed) <= len(named) / 10, missed


def test_a_kernel_names_a_mistake_that_the_op_has():
    for solution in filter(promised, WRONG):
        assert promised(solution) in ops.load_mistakes(solution.op), solution.name


# --- the mistakes themselves ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def problems():
    """Return the problems of an op's smoke cases, made once."""
    made = {}

    def of(op):
        if op.name not in made:
            cases = [case for case in op.cases("smoke") if not case.span]
            made[op.name] = [make_problem(op, case, 5, "cpu") for case in cases]
        return made[op.name]

    return of


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
            name: results[name] for name in results if (name == OUTPUT) == (direction == "forward")
        }
        right = all(
            what._is_right(value, problem.truth[name], problem.budgets[name], problem.slack)
            for name, value in ours.items()
        )
        verdict, ours = ("PASSED", {}) if right else ("INCORRECT_NUMERICAL", ours)
        verdicts[direction] = Verdict(
            "a/b", op.name, problem.case.name, direction, verdict, results=ours
        )
    return SimpleNamespace(
        solution=SimpleNamespace(name="a/b"),
        case=problem.case,
        problem=problem.outline,
        verdicts=verdicts,
    )


@pytest.mark.parametrize(("name", "mistake"), MISTAKES)
def test_whoever_makes_a_mistake_is_told_it(name, mistake, problems):
    op = ops.load(name)
    found = [made(op, ops.load_mistakes(name)[mistake], problem) for problem in problems(op)]
    wrong = tuple(
        each
        for each in DIRECTIONS
        if any(each in one.verdicts and not one.verdicts[each].fine for one in found)
    )
    (cause,) = what.causes(found)
    assert (cause.directions, cause.mistake) == (wrong, mistake)
