"""What `shaped` derives: every promise of test_smoke.py, whichever arguments an op has."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Protocol

import pytest
import torch

from common.ops import _whole
from common.ops._shaped import BOARD, ShapedCase, shaped
from common.spec import TIERS
from tests.ops import test_ops, test_smoke


class One(Protocol):
    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class WithVector(Protocol):
    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor: ...


class WithOptions(Protocol):
    def __call__(
        self, x: torch.Tensor, *, scale: float = 2.0, flip: bool = False
    ) -> torch.Tensor: ...


@dataclass(frozen=True, kw_only=True)
class OptionsCase(ShapedCase):
    scale: float = 2.0
    flip: bool = False


def with_options(x, *, scale=2.0, flip=False):
    return (x.flip(-1) if flip else x) * scale


ONE = {"interface": One, "reference": lambda x: torch.softmax(x, dim=-1)}
OPTIONS = {"interface": WithOptions, "reference": with_options, "case": OptionsCase}
FORMS = {
    "one argument": ONE,
    "one argument, few values": {**ONE, "values": ("zeros",)},
    "one argument, boards of its own": {**ONE, "board": (*BOARD, (10, 2, 4, 8))},
    "one with a vector": {
        "interface": WithVector, "reference": lambda x, weight: x * weight, "vectors": ("weight",),
    },
    "one with options": {**OPTIONS, "options": {"scale": (2.0, 3.0), "flip": (False, True)}},
    "one with an option of one value": {**OPTIONS, "options": {"scale": (2.0,), "flip": (False,)}},
}  # fmt: skip


@pytest.fixture(params=FORMS)
def op(request):
    return shaped(name="formed", rows=("x",), flops=(1, 1), **FORMS[request.param])


def test_an_op_of_any_arguments_is_whole(op):
    assert _whole.checked("formed", lambda: SimpleNamespace(OP=op)) is op
    assert not _whole.trial_fault(op)
    for tier in TIERS:
        assert isinstance(found := _whole.listed(op, tier, "cpu"), list), found


@pytest.mark.parametrize(
    "promise",
    [
        test_ops.test_case_names_are_unique,
        test_ops.test_the_parameters_say_all_that_a_case_is_drawn_from,
        test_ops.test_views_are_drawn_as_views,
        test_smoke.test_smoke_has_every_dtype_and_layout,
        test_smoke.test_upstream_gradients_have_special_values,
        test_smoke.test_a_smoke_case_has_whole_blocks_of_rows,
    ],
)
def test_an_op_of_any_arguments_keeps_the_promise(op, promise):
    promise(op)


def test_each_pair_of_options_of_one_argument_has_a_case():
    op = shaped(name="formed", rows=("x",), flops=(1, 1), **FORMS["one with options"])
    found = {(case.scale, case.flip) for case in op.cases("smoke")}
    assert found == {(scale, flip) for scale in (2.0, 3.0) for flip in (False, True)}
