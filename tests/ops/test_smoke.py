"""What the smoke cases of every op hold, so that mistakes of a kind show in one of them."""

from math import prod
from typing import get_args

import pytest

from common import ops
from common.ops._draw import draw
from common.spec import Layout
from tests.support.ops import every_op, lacks

MASKED = ("masked_linear", "masked_ffn")


@every_op
def test_smoke_has_every_dtype_and_layout(op):
    smoke = list(op.cases("smoke"))
    missing = {"float32", "bfloat16", "float16"} ^ {case.dtype for case in smoke}
    assert not missing, lacks(op, f"no smoke case of {missing}")
    layouts = {case.layout for case in smoke} | {case.upstream for case in smoke}
    missing = set(get_args(Layout)) ^ layouts
    assert not missing, lacks(op, f"no smoke case whose first argument or gradient is {missing}")


@every_op
def test_smoke_has_special_values_and_far_views(op):
    smoke = list(op.cases("smoke"))
    missing = {"normal", "zeros", "huge"}.difference(case.values for case in smoke)
    assert not missing, lacks(op, f"no smoke case with values {missing}")
    far = [(case.layout, case.upstream) for case in smoke if case.span]
    both = {("far", "contiguous"), ("contiguous", "far")}
    assert set(far) == both, lacks(op, "smoke cases with a far first argument and a far gradient")


@pytest.mark.parametrize(
    ("name", "values"),
    [("rope", "subnormal"), ("rotate_half", "subnormal"), *((name, "infinite") for name in MASKED)],
)
def test_smoke_has_the_further_values_that_the_op_can_take(name, values):
    assert values in {case.values for case in ops.load(name).cases("smoke")}


@every_op
def test_upstream_gradients_have_special_values(op):
    """A row of zeros, as of a token that counts to no loss, and what float16 lacks."""
    smoke = list(op.cases("smoke"))
    missing = {"zeros", "huge"}.difference(case.upstream_values for case in smoke)
    assert not missing, lacks(op, f"no smoke case whose gradient has values {missing}")
    assert ("bfloat16", "huge") in {(case.dtype, case.upstream_values) for case in smoke}
    case = next(case for case in smoke if case.upstream_values == "zeros")
    _, upstream = draw(op, case, 0, "cpu")
    assert not upstream[::2].any() and upstream[1::2].all()
    assert "upstream=zeros" in case.name


@every_op
def test_a_smoke_case_has_whole_blocks_of_rows(op):
    """A mask that ends at the remainder of a block of 256 is empty there."""
    sizes = [prod(op.output(case)[:-1]) for case in op.cases("smoke")]
    assert any(size and size % 256 == 0 for size in sizes), lacks(op, "no smoke case of 256 rows")


def test_positions_reach_beyond_the_integers_of_bfloat16():
    halves = [case for case in ops.load("rope").cases("smoke") if case.dtype == "bfloat16"]
    assert max(case.positions for case in halves) > 257


@pytest.mark.parametrize("name", MASKED)
def test_one_token_and_one_kind_may_stand_for_all(name):
    """By a stride of 0, as `expand` makes it."""
    smoke = list(ops.load(name).cases("smoke"))
    assert "expanded" in {case.layout for case in smoke}
    assert "expanded" in {case.mask_layout for case in smoke}


# --- cases that the seeds would have needed -------------------------------------------------------


@pytest.mark.parametrize("name", MASKED)
def test_masked_ops_have_the_smallest_sizes_and_both_kinds_of_weights_in_every_dtype(name):
    for dtype in ("float32", "bfloat16", "float16"):
        smoke = ops.load(name).cases("smoke")
        cases = [case for case in smoke if case.dtype == dtype and not case.weights]
        assert {0, 1} <= {case.tokens for case in cases}
        assert {1, 7} <= {width for case in cases for width in case.widths}
        assert {-1, 1} <= {_sign(case.widths[0] - case.widths[1]) for case in cases}


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


def test_rope_has_paired_angles_at_widths_that_overrun_a_row():
    cases = ops.load("rope").cases("smoke")
    plain = [case for case in cases if case.track_of("forward") == "standard"]
    assert {12, 24} <= {case.d for case in plain if not case.unusual}


def test_rope_has_sizes_of_powers_of_two_with_one_batch_and_half_of_the_width():
    cases = [case for case in ops.load("rope").cases("smoke") if case.b == 1 < case.h]
    assert any(case.d == 2 * case.d2 and _powers(case.s, case.h, case.d) for case in cases)


def _powers(*sizes: int) -> bool:
    return all(size > 1 and not size & (size - 1) for size in sizes)
