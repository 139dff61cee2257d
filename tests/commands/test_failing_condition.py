"""The property that separates failing cases from passing ones, and the labels of mere chance."""

import random
import re
from itertools import compress

import pytest

from common import ops
from common.commands.failing_condition import failing_condition
from common.ops._draw import facts_of

ROPE, LINEAR = ops.load("rope"), ops.load("masked_linear")


def facts(op):
    return [facts_of(op, case) for case in op.cases("smoke")]


@pytest.mark.parametrize(
    ("op", "fails", "holds"),
    [
        (ROPE, lambda c: c["h"] > 1, "h > 1"),
        (ROPE, lambda c: c["b"] > 1, "b > 1"),
        (ROPE, lambda c: c["d"] % 16, "d is no multiple of 16"),
        (ROPE, lambda c: c["s"] % 2, "s is odd"),
        (ROPE, lambda c: c["d2"] == c["d"], "d = d2"),
        (ROPE, lambda c: c["interleaved"], "interleaved is True"),
        (ROPE, lambda c: c["dtype"] == "bfloat16", "dtype is bfloat16"),
        (ROPE, lambda c: c["t"] in ("strided", "sparse"), "t is strided or sparse"),
        (LINEAR, lambda c: c["in"] != c["out"], "in ≠ out"),
        # of the passing cases, few share it with all failing ones
        (LINEAR, lambda c: c["in"].bit_count() > 1 and c["tokens"] != 37, "in is no power of two"),
        (LINEAR, lambda c: c["in"] != c["out"] and c["tokens"] not in (9, 37), "in ≠ out"),
    ],
)
def test_the_property_of_the_failing_cases_is_named(op, fails, holds):
    cases = facts(op)
    failing, passed = divided(cases, fails)
    found, n = failing_condition(failing, passed), len(failing)
    match = re.fullmatch(rf"fails( only)? where {re.escape(holds)} \({n} of (\d+)\)", found)
    assert match and bool(match[1]) == (int(match[2]) > n), found


def divided(cases, fails):
    """The failing cases and the passing ones."""
    failed = [fails(case) for case in cases]
    return [*compress(cases, failed)], [*compress(cases, [not each for each in failed])]


def test_both_sides_of_a_threshold_are_sizes_that_were_asked():
    """Between 3 and 10 heads none was asked, so that neither side speaks of 5."""
    heads = 1, 2, 3, 3, 3, 10, 10, 12, 12, 12
    cases = [{"h": h, "b": index % 3} for index, h in enumerate(heads)]
    assert failing_condition(cases[5:], cases[:5]) == "", "ten cases are too few"
    assert failing_condition(cases[5:] * 2, cases[:5] * 2) == "fails where h ≥ 10 (10 of 10)"
    assert failing_condition(cases[:5] * 2, cases[5:] * 2) == "fails where h ≤ 3 (10 of 10)"


@pytest.mark.parametrize("few", [1, 2])
def test_a_few_cases_separate_nothing(few):
    cases = [{"h": 10}] * few + [{"h": 1}] * 50
    assert not failing_condition(cases[:few], cases[few:])
    assert not failing_condition(cases[few:], cases[:few])
    assert failing_condition([{"h": 10}] * 3, cases[few:])


@pytest.mark.parametrize("name", ops.names())
def test_labels_drawn_at_random_are_not_separated_by_properties_of_the_same_names(name):
    op, dice = ops.load(name), random.Random(name)
    cases, board = facts(op), [facts_of(op, case) for case in op.cases("board")]
    assert len({tuple(each) for each in cases + board}) == 1
    for share in (0.04, 0.1, 0.3, 0.5, 0.8) * 3:
        assert not failing_condition(*divided(cases, lambda _, share=share: dice.random() < share))
