"""Calls at true shapes: integers are computed, floating values are memory that nobody touches."""

import itertools
import resource
import subprocess
import sys

import pytest
import torch

from common.sandbox.shape_only import ShapeOnlyMode

GIB = 1 << 30


def test_what_is_drawn_and_multiplied_takes_no_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with ShapeOnlyMode():
        x = torch.randn(1 << 16, 1 << 14, dtype=torch.bfloat16)
        y = (x @ x[: 1 << 14].T + 1).relu_()
    assert x.nbytes == y.nbytes == 2 * GIB
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < GIB / 4


def test_integers_and_booleans_are_right():
    mask = torch.tensor([True, False, True, True])
    with ShapeOnlyMode():
        count, where = int(mask.sum()), mask.nonzero().squeeze(1)
        counted = torch.cumsum(mask.int(), 0, dtype=torch.int32)
        kept = torch.empty(4, 2)[mask]
        assert torch.equal(mask, mask) and not torch.equal(mask, mask[:2])
    assert count == 3
    assert where.tolist() == [0, 2, 3]
    assert counted.tolist() == [1, 1, 2, 3]
    assert kept.shape == (3, 2)


def test_views_share_memory_and_what_is_written_in_place_is_itself():
    x = torch.zeros(4, 6)
    with ShapeOnlyMode():
        view = x.T[1:].unflatten(0, (5, 1))
        same = x.normal_()
        torch.add(x, 1, out=x)
    assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert same is x


LAYOUTS = {
    "contiguous": torch.ones(4, 3, 5, 6),
    "transposed": torch.ones(3, 4, 5, 6).transpose(0, 1),
    "reversed": torch.ones(6, 5, 3, 4, dtype=torch.float16).permute(3, 2, 1, 0),
    "expanded": torch.ones(1, 3, 5, 6).expand(4, 3, 5, 6),
    "strided": torch.ones(4, 3, 5, 9)[..., 2:8],
    "sparse": torch.ones(4, 3, 5, 12, dtype=torch.bfloat16)[..., ::2],
    "column": torch.ones(3, 4, 5, 1).transpose(0, 1),
    "channels_last": torch.ones(4, 3, 5, 6).to(memory_format=torch.channels_last),
    "scalar": torch.tensor(2.0),
    "integers": torch.arange(1, 7),
}


@pytest.mark.parametrize(("one", "other"), [*itertools.product(LAYOUTS, LAYOUTS)])
def test_a_pointwise_result_has_its_shape_strides_and_dtype(one, other):
    def results():
        x, y = LAYOUTS[one], LAYOUTS[other]
        product, where = x * y, torch.where(x > y, x, y)
        return product, where, y / x, product.cos(), product.clone(), product.contiguous(), x < y

    with ShapeOnlyMode(small=0):
        shaped = results()
    for found, true in zip(shaped, results(), strict=True):
        assert (found.dtype, found.shape, found.stride()) == (true.dtype, true.shape, true.stride())


DRAWS = """
import sys
import torch
from common import ops
from common.ops._draw import draw
from common.sandbox.shape_only import ShapeOnlyMode

for op, case in ((op, case) for op in map(ops.load, ops.names()) for case in op.cases("board")):
    with ShapeOnlyMode():
        arguments, upstream = draw(op, case, 0, "cpu")
        tensors = [each for each in arguments.values() if isinstance(each, torch.Tensor)]
        assert {each.device.type for each in tensors} == {"cpu"}
        assert [tuple(each.shape) for each in upstream.values()] == [*op.outputs(case).values()]
        upstream.popitem()[1] / 2 + arguments[op.differentiable[0]].flatten()[0].exp()
assert "torch._dynamo" not in sys.modules
assert torch.compile(torch.neg, backend="eager")(torch.ones(3)).sum() == -3
"""


@pytest.mark.slow
def test_the_boards_cases_are_drawn_at_their_true_shapes_and_no_compiler_is_imported():
    """Each compiling process would: it takes half a second. A solution may use it afterwards."""
    subprocess.run([sys.executable, "-c", DRAWS], check=True)


def test_gradients_flow():
    x = torch.empty(4, 6, requires_grad=True)
    with ShapeOnlyMode():
        y = torch.nn.functional.silu(x) @ torch.empty(6, 3)
        (grad,) = torch.autograd.grad(y, x, torch.empty(4, 3))
    assert grad.shape == x.shape
