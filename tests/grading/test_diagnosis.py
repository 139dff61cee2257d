"""What failures come of: a mistake that alone explains them all, or one property of a case."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from common import ops
from common.draws import Draws
from common.grading import diagnosis, oracle
from common.grading.diagnosis import TRIES, contrast, plainer
from common.grading.problem import make_problem
from common.grading.sweep import Sweep
from common.ops.rope import RopeCase
from common.solutions import Solution
from common.spec import DIRECTIONS, OUTPUT
from common.verdicts import Verdict
from tests.support.workers import graded_as, written

HALF = ops.load("rotate_half")
CASES = [case for case in HALF.cases("smoke") if not case.far_bytes]
SIGN = "the other half is negated: [x2, -x1]"
IN_HALVES = "halves are paired where neighbours are asked for"
HALVES, NEIGHBOURS = ([case for case in CASES if case.interleaved == each][:4]
                      for each in (False, True))  # fmt: skip


# --- the decision ---------------------------------------------------------------------------------


def explained(wrong: list[str], right: list[str] = ()) -> str:
    """Each case is written as the mistakes that explain it, in capitals if that is unknown."""
    mistakes = sorted(set("".join([*wrong, *right, "abc"]).lower()))

    def explains(mistake, case):
        return None if mistake.upper() in case else mistake in case

    return "".join(diagnosis.explanations(mistakes, wrong, right, explains))


@pytest.mark.parametrize(
    ("wrong", "right", "cause"),
    [
        (["a", "a"], [], "a"), (["a"], [], ""), (["a", "a", ""], [], ""), (["", ""], [], ""),
        (["ab", "ab"], [], "ab"), (["ab", "ab"], ["a"], ""), (["ab", "ab"], ["a", "a"], "a"),
        (["ab", "a"], [], ""), (["ab", "a", "a"], [], "a"),
        (["a", "a"], ["abc"], "a"), (["a", "a"], ["bc"], ""),
        (["a", "a", "A"], [], "a"), (["a", "A", "A"], [], ""),
        (["aB", "aB"], [], "a"), (["aB", "aB", "ab"], [], ""),
    ],
)  # fmt: skip
def test_a_mistake_explains_all_and_two_cases_tell_it_from_each_other(wrong, right, cause):
    assert explained(wrong, right) == cause


# --- the cases ------------------------------------------------------------------------------------


def graded(case, reference, verdict="INCORRECT_NUMERICAL", results=True, by=oracle.truth):
    """Return a case as if a solution had computed this reference, rounded, or as eager does."""
    problem = make_problem(HALF, case, Draws(7), "cpu")
    assert problem.budgets[OUTPUT]  # a comparison would compute it
    op = dataclasses.replace(HALF, reference=reference)
    values = by(op, problem.arguments, problem.upstream)
    verdicts = {}
    for direction in DIRECTIONS:
        kept = {
            name: value.to(getattr(torch, case.dtype))
            for name, value in values.items()
            if (name == OUTPUT) == (direction == "forward") and results and verdict != "PASSED"
        }
        verdicts[direction] = Verdict("a/b", op.name, case.name, direction, verdict, results=kept)
    solution = SimpleNamespace(name="a/b")
    return SimpleNamespace(solution=solution, case=case, problem=problem.summary, verdicts=verdicts)


def mistake(name):
    return ops.load_mistakes(HALF.name)[name]


def causes(found):
    return [(cause.directions, ", or: ".join(cause.mistakes)) for cause in diagnosis.causes(found)]


def tripled(x, interleaved):
    return 3 * x


def judged(verdict):
    return [graded(case, HALF.reference, verdict, False) for case in CASES[4:6]]


@pytest.mark.parametrize(
    ("cases", "made", "others", "cause"),
    [
        (CASES[:4], SIGN, lambda: [], SIGN),
        (CASES[:4], None, lambda: [], None),
        (CASES[:4], SIGN, lambda: judged("PASSED"), None),  # the mistake would show there
        (CASES[:4], SIGN, lambda: judged("UNSUPPORTED") + judged("OUT_OF_BOUNDS"), SIGN),
        (NEIGHBOURS, IN_HALVES, lambda: [graded(case, HALF.reference, "PASSED") for case in HALVES],
         IN_HALVES),  # the mistake changes nothing there
    ],
)  # fmt: skip
def test_a_mistake_explains_all_wrong_cases_and_no_right_one(cases, made, others, cause):
    found = [graded(case, mistake(made) if made else tripled) for case in cases]
    assert causes([*found, *others()]) == ([(DIRECTIONS, cause)] if cause else [])


AS_IT_IS = "x comes back as it is"
UPSTREAM = "the upstream gradient comes back as it is"


def test_of_two_mistakes_with_the_same_gradients_forward_tells_or_both_are_said():
    found = [graded(case, mistake(AS_IT_IS)) for case in CASES[:4]]
    assert causes(found) == [(DIRECTIONS, AS_IT_IS)]
    found = [graded(case, mistake(UPSTREAM)) for case in CASES[:4]]
    for each in found:
        right = each.verdicts["forward"]
        each.verdicts["forward"] = dataclasses.replace(right, verdict="PASSED", results={})
    assert causes(found) == [(("backward",), UPSTREAM)]
    for each in found:
        del each.verdicts["forward"]
    assert causes(found) == [(("backward",), f"{AS_IT_IS}, or: {UPSTREAM}")]


@pytest.mark.parametrize(("made", "kept"), [(IN_HALVES, True), (IN_HALVES, False), (SIGN, True)])
def test_a_failure_of_a_later_call_refutes_what_would_change_the_first(made, kept):
    """A mistake that changes nothing there stays, unless the first call's results are unknown."""
    wrong = [graded(case, mistake(made)) for case in NEIGHBOURS]
    found = causes([*wrong, graded(HALVES[0], HALF.reference, results=kept)])
    assert found == ([(DIRECTIONS, made)] if kept and made == IN_HALVES else [])


def cubed(x, interleaved):
    return (x + 0.7) ** 3 / 3


def test_a_mistake_has_the_budget_of_its_own_values(monkeypatch):
    """The op's has none: eager is exact, and a cube is not."""
    monkeypatch.setattr(ops, "load_mistakes", lambda op: {"cubed": cubed})
    found = [graded(case, cubed, by=oracle.eager) for case in HALVES]
    assert causes(found) == [(DIRECTIONS, "cubed")]


@pytest.mark.parametrize("verdict", ["OUT_OF_BOUNDS", "INCORRECT_NUMERICAL", "PASSED"])
def test_where_a_mistake_leaves_the_tensor_only_a_pass_refutes_it(monkeypatch, verdict):
    negated = mistake(SIGN)

    def outside_of_halves(x, interleaved):
        if not interleaved:
            raise NotImplementedError("outside")
        return negated(x=x, interleaved=interleaved)

    wrong = [graded(case, negated) for case in NEIGHBOURS]
    others = [graded(case, tripled, verdict) for case in HALVES]
    monkeypatch.setattr(ops, "load_mistakes", lambda op: {"outside": outside_of_halves})
    assert bool(causes([*wrong, *others])) == (verdict != "PASSED")


LINEAR = ops.load("masked_linear")
PLAIN = {"contiguous", "expanded"}
SMALL = [case for case in LINEAR.cases("smoke")
         if case.tokens == 20 and {*case.layouts.values()} <= PLAIN]  # fmt: skip


DOUBLED = """
import torch

def masked_linear(x, w_v, w_t, mask):
    {twice}
    return torch.where(mask[:, None], x @ w_v.T, x @ w_t.T)
"""


@pytest.mark.parametrize(
    ("twice", "end"),
    [
        ("x, w_v = 2 * x - x.detach(), 2 * w_v - w_v.detach()", "; the gradient of w_t is right"),
        ("x, w_v, w_t = (2 * each - each.detach() for each in (x, w_v, w_t))", " wrong)"),
    ],
)
def test_a_wrong_gradient_is_told_with_those_that_are_right(graded_source, twice, end):
    cases = [case for case in SMALL if case.mask == "random" and case.values == "normal"][:2]
    found = graded_source(LINEAR, cases, DOUBLED.format(twice=twice))
    assert found and all(each.verdicts["backward"].reason.endswith(end) for each in found)


# --- contrasts ------------------------------------------------------------------------------------

ROPE = ops.load("rope")
SUBNORMAL = next(c for c in HALF.cases("smoke") if c.values == "subnormal" and not c.interleaved)
FLUSHES = """
import torch

def rotate_half(x):
    a, b = x.chunk(2, -1)
    y = torch.cat((-b, a), -1)
    flushed = (y.abs() < torch.finfo(x.dtype).tiny).all()
    return torch.where(flushed, y - y.detach(), y)
"""
"""It flushes a tensor of nothing but subnormal numbers: one draw in 140 of the normal ones in
float16 has a subnormal number too, and who flushed each number would fail there by chance."""


def test_the_property_is_named_without_which_the_case_passes(tmp_path, fork_server):
    with Sweep("cpu", server=fork_server) as sweep:
        (failing,) = sweep.grade(HALF, [SUBNORMAL], [written(tmp_path, FLUSHES)])
        found = contrast(sweep, failing)
    assert found.endswith(" passes with values normal in place of subnormal")


@pytest.mark.parametrize(
    ("failing", "plainer", "said"),
    [
        ([False] * TRIES, [True] * TRIES, True),
        ([False, False, True], [True] * TRIES, False),
        ([False] * TRIES, [True, True, False], False),
    ],
)
def test_what_differs_from_try_to_try_says_nothing(monkeypatch, failing, plainer, said):
    """The answers are given: whether each of the two cases passes in each try."""
    solution = Solution(Path("a/rotate_half.py"), "rotate_half")
    tries = {"normal": list(plainer), "subnormal": list(failing)}

    def grade(op, cases, solutions):
        for case in cases:
            verdict = "PASSED" if tries[case.values].pop(0) else "INCORRECT_NUMERICAL"
            yield graded_as(HALF, case, solution, verdict)

    plain = dataclasses.replace(SUBNORMAL, values="normal")
    monkeypatch.setattr(diagnosis, "plainer", lambda op, case: {plain: "plainer"})
    failed = graded_as(HALF, SUBNORMAL, solution, "INCORRECT_NUMERICAL")
    assert bool(contrast(SimpleNamespace(grade=grade), failed)) == said


def test_each_property_goes_by_itself():
    case = RopeCase(
        s=4, b=2, h=1, d=16, d2=10, dtype="bfloat16", interleaved=True, cp_size=3, cp_rank=1,
        layout="strided", freqs_layout="strided",
    )  # fmt: skip
    changed = [
        {name for name in vars(case) if getattr(case, name) != getattr(other, name)}
        for other in plainer(ROPE, case)
    ]
    several = "dtype", "layout", "interleaved", "freqs_layout"
    assert changed == [*({name} for name in several), {"cp_size", "cp_rank"}]
