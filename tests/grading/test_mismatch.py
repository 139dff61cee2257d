"""The wrong elements of a result, in words."""

from types import SimpleNamespace

import pytest
import torch

from common import ops
from common.draws import Draws
from common.grading.compare import compare, differing
from common.grading.mismatch import describe
from common.grading.problem import make_problem
from common.ops._draw import draw
from common.spec import Axis

ROPE = ops.load("rope")
PARTS = {
    "the first half of the rotated features": range(8),
    "the rotated features": range(16),
    "the unrotated features": range(16, 22),
}
AXES = (Axis("position"), Axis("batch"), Axis("head"), Axis("feature", PARTS))
ALL = slice(None)


def wrong(shape, *sharing):
    mask = torch.zeros(shape, dtype=torch.bool)
    for place in sharing:
        mask[place] = True
    return mask


@pytest.mark.parametrize(
    ("size", "indices", "words"),
    [(7, [5], "index 5 of 0 to 6"), (7, range(1, 7), "indices 1 to 6 (0 is right)"),
     (70, range(64), "indices 0 to 63 of 0 to 69"),
     (70, range(64, 70), "indices from 64 on, the last 6 of 70"),
     (70, [68, 69], "indices from 68 on, the last 2 of 70"),
     (16, range(8, 16), "indices 8 to 15 of 0 to 15"),
     (40, range(8, 24), "indices 8 to 23 of 0 to 39"),
     (9, [3, 4], "indices 3 and 4 of 0 to 8"), (8, range(1, 8, 2), "every second index from 1 on"),
     (30, range(1, 12, 3), "every third index from 1 to 10 of 0 to 29"),
     (30, [2, 5, 17], "indices 2, 5 and 17 of 0 to 29"),
     (30, [0, 1, 2, 3, 12, 20, 21], "indices 0 to 3, 12 and 20 to 21 of 0 to 29"),
     (30, sorted({*range(30)} - {4, 9}), "every index but 4 and 9 of 0 to 29"),
     (30, [0, 1, 3, 7, 8, 13, 20, 29], "8 of 30 indices"), (6, range(6), "every element")],
)  # fmt: skip
def test_indices_of_one_dimension(size, indices, words):
    assert describe(wrong((size,), list(indices)), [Axis("index")]) == words


def test_a_set_of_indices_in_each_dimension():
    rotated = wrong((7, 2, 3, 16), (slice(1, 7), ALL, ALL, slice(0, 8)))
    assert describe(rotated, AXES) == (
        "positions 1 to 6 (0 is right), features 0 to 7 of 0 to 15"
        " (the first half of the rotated features), every batch and head"
    )
    rest = wrong((7, 1, 3, 22), (ALL, ALL, 0, slice(16, 22)))
    assert describe(rest, AXES) == (
        "head 0 of 0 to 2, features from 16 on, the last 6 of 22 (the unrotated features),"
        " every position"
    ), "a dimension of one index is not named"
    within = wrong((4, 1, 1, 22), (ALL, ALL, ALL, slice(2, 6)))
    assert "(within the first half of the rotated features)" in describe(within, AXES)
    diagonal = torch.eye(9, dtype=torch.bool)
    assert describe(diagonal, AXES[:2]) == "every position and batch, not all of those"


@pytest.mark.parametrize("name", ops.names())
def test_every_op_names_each_dimension_of_each_result(name):
    op = ops.load(name)
    for case in op.cases("smoke"):
        arguments, _ = draw(op, case, 1, "cpu")
        axes = op.axes(case, arguments)
        for name, shape in op.outputs(case).items():
            assert len(axes[name]) == len(shape)
        assert axes.keys() == {*op.outputs(case), *op.differentiable}
        for argument in op.differentiable:
            shape = arguments[argument].shape
            assert len(axes[argument]) == len(shape)
            for axis, size in zip(axes[argument], shape, strict=True):
                indices = set().union(*axis.parts.values())
                assert indices <= set(range(size)), axis


# --- in a verdict ---------------------------------------------------------------------------------


def test_a_finding_says_where_in_the_words_of_the_op():
    case = next(case for case in ROPE.cases("smoke") if case.name == "sbhd-7x2x3x16-float32")
    problem = make_problem(ROPE, case, Draws(0), "cpu")
    result = problem.truth["output"].float()
    result[2:, :, 1, 8:] += 1
    (found,), _ = compare(problem, "output", result, result)
    expected, came = problem.truth["output"][2, 0, 1, 8], result[2, 0, 1, 8]
    bound = 2 * problem.slack * problem.budgets["output"].bounds.item()
    assert found.reason == (
        "output wrong: positions 2 to 6 (0 and 1 are right), head 1 of 0 to 2, features 8 to 15 of"
        " 0 to 15 (the second half of the rotated features), every batch; at [2, 0, 1, 8] expected"
        f" {expected:.8g} ± {bound:.2g}, got {came:.8g} (80 of 672 wrong)"
    )


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (4.0, ": each is twice as much the second time, as if it were added up"),
        (12345.0, ": the second time nothing is written there, it is fresh memory"),
        (2.0000002, ": by the last bit alone"),
        (2.5, ""),
    ],
)
def test_two_answers_that_differ_are_related_where_that_says_something(second, said):
    line = SimpleNamespace(axes=lambda name: (Axis("element"),))
    (found,) = differing(line, "output", torch.tensor([1.0, 2.0]), torch.tensor([1.0, second]))
    assert found.reason.endswith(f"on the same inputs{said}")
