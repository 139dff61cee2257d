"""Calls at true shapes: integers are computed, floating values are memory that nobody touches."""

from __future__ import annotations

import resource

import torch

from common import ops
from common.ops._draw import draw
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


def test_gradients_flow():
    x = torch.empty(4, 6, requires_grad=True)
    with ShapeOnlyMode():
        y = torch.nn.functional.silu(x) @ torch.empty(6, 3)
        (grad,) = torch.autograd.grad(y, x, torch.empty(4, 3))
    assert grad.shape == x.shape


def test_every_case_of_the_board_is_drawn_at_its_true_shape():
    for op in map(ops.load, ops.names()):
        for case in op.tier("board", "cuda"):
            with ShapeOnlyMode():
                arguments, grad_output = draw(op, case, 0, "cpu")
            assert grad_output.shape == tuple(op.output(case))
            assert all(argument.device.type == "cpu" for argument in arguments.values()
                       if isinstance(argument, torch.Tensor))  # fmt: skip
