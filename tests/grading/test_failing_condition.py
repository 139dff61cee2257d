"""The property that separates failing cases from passing ones, and the labels of mere chance."""

from __future__ import annotations

import random
import re
from typing import Protocol

import pytest
import torch

from common import ops
from common.grading.failing_condition import failing_condition
from common.ops._draw import facts_of
from common.ops._shaped import shaped
from common.ops._views import layout_name

ROPE, LINEAR = ops.load("rope"), ops.load("masked_linear")


class Layered(Protocol):
    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor: ...


LAYERED = shaped(
    name="layered", interface=Layered, reference=lambda x, weight: x * weight, rows=("x",),
    vectors=("weight",), flops=(1, 1),
)  # fmt: skip


def facts(op):
    return [facts_of(op, case) for case in op.cases("smoke")]


def split(op, fails):
    """Return what separates the smoke cases for which `fails` holds, and how many those are."""
    cases = facts(op)
    failing = [case for case in cases if fails(case)]
    passing = [case for case in cases if not fails(case)]
    return failing_condition(failing, passing), len(failing), len(passing)


@pytest.mark.parametrize(
    ("op", "fails", "words"),
    [
        (ROPE, lambda c: c["h"] > 1, "fails where h > 1 {}, passes where h = 1 {}"),
        (ROPE, lambda c: c["b"] > 1, "fails where b > 1 {}, passes where b ≤ 1 {}"),
        (ROPE, lambda c: c["d"] % 16, "fails where d is no multiple of 16 {}, passes where d is a"
         " multiple of 16 {}"),
        (ROPE, lambda c: c["s"] % 2, "fails where s is odd {}, passes where s is even {}"),
        (ROPE, lambda c: c["d2"] == c["d"], "fails where d = d2 {}, passes where d ≠ d2 {}"),
        (ROPE, lambda c: c["interleaved"], "fails where interleaved is True {}, passes where"
         " interleaved is False {}"),
        (ROPE, lambda c: c["dtype"] == "bfloat16", "fails where dtype is bfloat16 {}, passes where"
         " dtype is not bfloat16 {}"),
        (ROPE, lambda c: c["t"] in ("strided", "sparse"), "fails where t is strided or sparse {},"
         " passes where t is neither strided nor sparse {}"),
        (ROPE, lambda c: c["h"] > 1 and c["dtype"] == "float32", "fails where h > 1 and dtype is"
         " float32 {}, passes elsewhere {}"),
        (ROPE, lambda c: c["interleaved"] or c["h"] == 1, "fails where h = 1 or interleaved is"
         " True {}, passes where h > 1 and interleaved is False {}"),
        (LINEAR, lambda c: c["in"] != c["out"], "fails where in ≠ out {}, passes where in = out"
         " {}"),
    ],
)  # fmt: skip
def test_a_separating_property_is_named(op, fails, words):
    found, failing, passing = split(op, fails)
    assert found == words.format(f"({failing} of {failing})", f"({passing} of {passing})")


def test_of_several_pairs_that_would_do_none_is_named_but_what_they_share():
    """All failing cases are interleaved; there, b > 1 and s > 4 are the same."""
    pairs = [(flag, b, s) for flag in (False, True) for b in (1, 2) for s in (4, 5)]
    cases = [
        {"interleaved": flag, "b": b, "s": s} for flag, b, s in pairs if not flag or b == s - 3
    ]
    both = [[case for case in 8 * cases if (case["interleaved"] and case["b"] > 1) is way]
            for way in (True, False)]  # fmt: skip
    assert failing_condition(*both) == (
        "fails only where interleaved is True (8 of 16), passes where interleaved is False"
        " (32 of 32)"
    )


def power_of_two(size):
    return size.bit_count() == 1


@pytest.mark.parametrize(
    ("op", "fails", "words"),
    [
        (LAYERED, lambda c: not power_of_two(c["d"]) and c["values"] != "zeros",
         "fails only where d is no power of two {}, passes where d is a power of two {}"),
        (LAYERED, lambda c: not power_of_two(c["d"]) and c["weight"] != "offset",
         "fails where weight is not offset and d is no power of two {}, passes elsewhere {}"),
        (LINEAR, lambda c: not power_of_two(c["in"]) and c["tokens"] != 37,
         "fails only where in is no power of two {}, passes where in is a power of two {}"),
        (LINEAR, lambda c: c["in"] != c["out"] and c["tokens"] not in (9, 37),
         "fails only where in ≠ out {}, passes where in = out {}"),
        (ROPE, lambda c: c["b"] > 1 and c["tensor_format"] == "sbhd" and c["s"] != 1,
         "fails only where b > 1 and tensor_format is sbhd {}, passes elsewhere {}"),
        (ROPE, lambda c: c["h"] % 2 and c["dtype"] == "bfloat16" and c["d"] > 4,
         "fails only where dtype is bfloat16 and h is odd {}, passes elsewhere {}"),
    ],
)  # fmt: skip
def test_what_few_passing_cases_share_with_all_failing_ones_is_named(op, fails, words):
    found, failing, passing = split(op, fails)
    holds = re.search(r"\((\d+) of (\d+)\)", found)
    assert int(holds[1]) == failing
    rest = failing + passing - int(holds[2])
    assert found == words.format(f"({failing} of {holds[2]})", f"({rest} of {rest})")


def test_both_sides_of_a_threshold_are_sizes_that_were_asked():
    """Between 3 and 10 heads none was asked, so that neither side speaks of 5."""
    cases = [
        {"h": h, "b": index % 3} for index, h in enumerate((1, 2, 3, 3, 3, 10, 10, 12, 12, 12))
    ]
    expected = "fails where h ≥ 10 (5 of 5), passes where h ≤ 3 (5 of 5)"
    assert failing_condition(cases[5:], cases[:5]) == ""
    assert failing_condition(cases[5:] * 2, cases[:5] * 2) == expected.replace("5", "10")


def test_properties_that_separate_the_same_cases_are_all_named():
    small = [{"h": 1, "d": 16, "dtype": dtype} for dtype in "abababab"]
    large = [case | {"h": 3, "d": 32} for case in small]
    assert failing_condition(large, small) == (
        "fails where h = 3 (8 of 8), passes where h = 1 (8 of 8); d tells them apart too"
    )


def test_a_pair_is_not_named_where_one_of_the_two_has_a_double():
    pairs = [(h, s, dtype) for h in (1, 3) for s in (4, 5) for dtype in "ab" for _ in range(4)]
    plain = [{"h": h, "s": s, "dtype": dtype} for h, s, dtype in pairs]
    doubled = [{**case, "d": 16 * case["h"]} for case in plain]
    for cases, words in (
        (plain, "fails where h = 3 and dtype is b (8 of 8), passes elsewhere (24 of 24)"),
        (doubled, ""),
    ):
        both = ([c for c in cases if (c["h"] == 3 and c["dtype"] == "b") is way]
                for way in (True, False))  # fmt: skip
        assert failing_condition(*both) == words


def test_a_layout_counts_where_the_view_is_another():
    """With one sequence the first two dimensions may change places and nothing is different."""
    layouts = {"contiguous", "offset", "strided", "transposed", "sparse", "reversed", "expanded"}
    assert {layout for layout in layouts if layout_name((5, 2, 3), layout) != "contiguous"} == (
        layouts - {"contiguous"}
    )
    assert layout_name((5, 1, 3), "transposed") == "contiguous"
    assert layout_name((1, 2, 3), "strided") == "strided"
    assert layout_name((0, 2, 3), "sparse") == "contiguous"


def test_nothing_separates_cases_that_are_alike():
    cases = facts(ROPE)
    assert not failing_condition(cases, cases)


def test_a_property_of_three_fields_is_not_named_by_two():
    found, *_ = split(ROPE, lambda c: c["d"] % 16 and c["b"] > 1 and c["dtype"] != "float32")
    assert not found


@pytest.mark.parametrize("few", [1, 2])
def test_a_few_cases_separate_nothing(few):
    cases = [{"h": 10}] * few + [{"h": 1}] * 50
    assert not failing_condition(cases[:few], cases[few:])
    assert not failing_condition(cases[few:], cases[:few])
    assert failing_condition([{"h": 10}] * 3, cases[few:])


@pytest.mark.parametrize("name", ops.names())
@pytest.mark.slow
def test_labels_drawn_at_random_are_not_separated(name):
    cases, dice = facts(ops.load(name)), random.Random(name)
    for share in (0.04, 0.1, 0.3, 0.5, 0.8) * 40:
        failed = [dice.random() < share for _ in cases]
        both = (
            [c for c, f in zip(cases, failed, strict=True) if f is way] for way in (True, False)
        )
        assert not failing_condition(*both)


def test_labels_at_random_would_be_separated_without_the_rule_of_chance(monkeypatch):
    """With few cases and many properties something separates, often."""
    everything, dice, claims = facts(ROPE), random.Random(1), {1.0: 0, 1e-3: 0}
    for chance in claims:
        for name in ("CHANCE", "CHANCE_OF_LESS"):
            monkeypatch.setattr(f"common.grading.failing_condition.{name}", chance)
        for _ in range(40):
            cases = dice.sample(everything, 8)
            claims[chance] += bool(failing_condition(cases[:4], cases[4:]))
    assert claims[1.0] > 10
    assert not claims[1e-3]


@pytest.mark.parametrize("name", ops.names())
def test_the_properties_have_the_same_names_in_every_case(name):
    op = ops.load(name)
    names = {tuple(facts_of(op, case)) for tier in ("smoke", "board") for case in op.cases(tier)}
    assert len(names) == 1
