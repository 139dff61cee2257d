"""What the smoke cases of every op hold, so that mistakes of a kind show in one of them."""

from math import prod
from typing import get_args

import pytest

from common import ops
from common.ops._draw import draw
from common.spec import DTYPES, Layout
from tests.support.ops import every_op, lacks


@every_op
def test_smoke_has_every_dtype_layout_and_special_value(op):
    smoke = list(op.cases("smoke"))
    required = {
        "dtype": {*DTYPES},
        "layout": {"strided", "transposed", "sparse", "far"},
        "upstream": {"strided", "expanded", "reversed", "far"},
        "values": {"normal", "zeros"},
        "upstream_values": {"normal", "zeros", "huge"},
    }
    for field, values in required.items():
        missing = values.difference(getattr(case, field) for case in smoke)
        assert not missing, lacks(op, f"no smoke case whose {field} is {missing}")
    layouts = {layout for case in smoke for layout in (case.layout, case.upstream)}
    assert layouts == {*get_args(Layout)}
    far = {(case.layout, case.upstream) for case in smoke if case.far_bytes}
    assert far == {("far", "contiguous"), ("contiguous", "far")}
    assert ("bfloat16", "huge") in {(case.dtype, case.upstream_values) for case in smoke}
    # a mask that ends at the remainder of a block of 256 is empty there
    sizes = [prod(next(iter(op.outputs(case).values()))[:-1]) for case in smoke]
    assert any(size and size % 256 == 0 for size in sizes), lacks(op, "no smoke case of 256 rows")
    # as of a token that counts to no loss
    zeros = next(case for case in smoke if case.upstream_values == "zeros")
    _, upstream = draw(op, zeros, 0, "cpu")
    for gradient in upstream.values():
        assert not gradient[::2].any() and gradient[1::2].all()
    assert "upstream=zeros" in zeros.name


@pytest.mark.parametrize("name", ["masked_linear", "masked_ffn"])
def test_masked_ops_have_least_sizes_stride_zero_and_infinite_weights(name):
    smoke = list(ops.load(name).cases("smoke"))
    assert "infinite" in {case.values for case in smoke}
    assert "expanded" in {case.layout for case in smoke} & {case.mask_layout for case in smoke}
    for dtype in DTYPES:
        cases = [case for case in smoke if case.dtype == dtype
                 and {*case.layouts.values()} == {"contiguous"}]  # fmt: skip
        assert {0, 1} <= {case.tokens for case in cases}
        assert {1, 7} <= {width for case in cases for width in case.widths}
        assert {True, False} == {case.widths[0] < case.widths[1] for case in cases}
