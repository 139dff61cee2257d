"""The masked ops: their masks, and their references against ones written token by token."""

import dataclasses
from itertools import pairwise, product

import pytest
import torch

from common import ops
from common.ops._masked import draw_mask
from common.spec import DIRECTIONS
from tests.support.ops import drawn

LINEAR, FFN = ops.load("masked_linear"), ops.load("masked_ffn")
CASE, FFN_CASE = (
    dataclasses.replace(op.large, tokens=12, widths=(6, 10), mask="random", dtype="float32")
    for op in (LINEAR, FFN)
)


def mask_of(**fields):
    return draw_mask(dataclasses.replace(CASE, **fields), torch.Generator().manual_seed(0))


def runs(mask):
    """Return the number of spans of visual tokens."""
    padded = [False, *mask.tolist(), False]
    return sum(after and not before for before, after in pairwise(padded))


def test_each_sequence_has_a_span_of_at_most_1024_tokens():
    mask = mask_of(tokens=4096, mask="span")
    assert (runs(mask), int(mask.sum())) == (1, 1024)
    assert int(mask_of(tokens=70, mask="span").sum()) == 35
    mask = mask_of(tokens=4096 * 3 + 1, mask="span", sequences=3)
    assert runs(mask) in (2, 3), "two that meet are one"
    assert [int(part.sum()) for part in mask.split(4096)] == [1024, 1024, 1024, 0]


def test_a_third_of_the_tokens_is_one_span():
    mask = mask_of(tokens=8192, mask="third")
    assert (runs(mask), int(mask.sum())) == (1, 2730)
    assert not mask_of(tokens=2, mask="third").any()


def test_all_none_and_random_masks():
    assert bool(mask_of(mask="all").all())
    assert not bool(mask_of(mask="none").any())
    assert 1000 < int(mask_of(tokens=3000, mask="random").sum()) < 2000


def linear_by_hand(x, w_v, w_t, mask):
    rows = [(w_v if visual else w_t) @ token for token, visual in zip(x, mask, strict=True)]
    return torch.stack(rows)


def ffn_by_hand(x, w1, w2, w3, u1, u2, u3, mask):
    def layer(token, first, second, third):
        gate = first @ token
        return second @ (gate / (1 + (-gate).exp()) * (third @ token))

    rows = [
        layer(token, w1, w2, w3) if visual else layer(token, u1, u2, u3)
        for token, visual in zip(x, mask, strict=True)
    ]
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("op", "case", "by_hand"),
    [(LINEAR, CASE, linear_by_hand), (FFN, FFN_CASE, ffn_by_hand)],
    ids=["linear", "ffn"],
)
def test_reference_is_the_definition_and_so_are_its_gradients(op, case, by_hand):
    def results(function):
        arguments = {
            name: value.double().requires_grad_() if value.is_floating_point() else value
            for name, value in drawn(op, case).items()
        }
        output = function(**arguments)
        upstream = torch.linspace(-1, 1, output.numel()).view(output.shape).double()
        inputs = [arguments[name] for name in op.differentiable]
        return [output, *torch.autograd.grad(output, inputs, upstream)]

    torch.testing.assert_close(results(op.reference), results(by_hand), rtol=1e-12, atol=1e-12)


def test_minimum_work_by_hand():
    case = dataclasses.replace(CASE, dtype="bfloat16")
    forward, backward = (LINEAR.work(case, direction) for direction in ("forward", "backward"))
    # x, two weights and the output, of 2 bytes each, and a byte of mask a token
    assert forward.bytes == 2 * (12 * 6 + 2 * 60 + 12 * 10) + 12
    assert forward.flops == 2 * 12 * 6 * 10
    # backward writes the gradients of x and both weights too
    assert backward.bytes == forward.bytes + 2 * (12 * 6 + 2 * 60)
    assert backward.flops == 2 * forward.flops
    one_set = LINEAR.work(dataclasses.replace(case, mask="all"), "forward")
    assert one_set.bytes == forward.bytes - 2 * 60, "weights without a token need not be read"
    assert FFN.work(case, "forward").flops == 3 * forward.flops
    for op, direction in product((LINEAR, FFN), DIRECTIONS):
        work = op.work(case, direction)
        assert work.flops == sum(2 * m * k * n for m, k, n in work.products)
