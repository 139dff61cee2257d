"""What `shaped` derives keeps every op's promises, whichever arguments an op has."""

from __future__ import annotations

from typing import Protocol

import pytest
import torch

from common.draws import Draws
from common.grading.compare import compare_other
from common.grading.problem import make_problem
from common.ops import _whole
from common.ops._shaped import BOARD, shaped
from common.spec import OUTPUT, TIERS
from tests.ops import test_names, test_ops, test_pairs, test_smoke


class One(Protocol):
    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class WithVector(Protocol):
    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor: ...


class WithOptions(Protocol):
    def __call__(
        self, x: torch.Tensor, *, scale: float = 2.0, flip: bool = False
    ) -> torch.Tensor: ...


class WithFlip(Protocol):
    def __call__(self, x: torch.Tensor, *, flip: bool = True) -> torch.Tensor: ...


def with_options(x, *, scale=2.0, flip=False):
    return (x.flip(-1) if flip else x) * scale


ONE = {"interface": One, "reference": lambda x: torch.softmax(x, dim=-1)}
VECTOR = {"interface": WithVector, "reference": lambda x, weight: x * weight}
OPTIONS = {"interface": WithOptions, "reference": with_options}
FORMS = {
    "one argument": ONE,
    "one argument, few values": {**ONE, "values": ("zeros",)},
    "one argument, boards of its own": {**ONE, "board": (*BOARD, {"shape": (5, 2)})},
    "one argument, linear": {**ONE, "linear": True},
    "one with a vector": {**VECTOR, "vectors": ("weight",)},
    "one with options": {**OPTIONS, "options": {"scale": (2.0, 3.0), "flip": (False, True)}},
    "one with an option that is on": {
        "interface": WithFlip,
        "reference": lambda x, *, flip=True: x.flip(-1) if flip else x,
        "options": {"flip": (True, False)},
    },
    "one with an option of one value": {**OPTIONS, "options": {"scale": (2.0,), "flip": (False,)}},
}


def formed(form):
    return shaped(name="formed", rows=("x",), flops=(1, 1), **FORMS[form])


@pytest.mark.parametrize("form", FORMS)
def test_an_op_of_any_arguments_keeps_every_promise(form):
    op = formed(form)
    _whole.check("formed", op)
    _whole.check_by_trial(op, *TIERS)
    test_ops.test_the_parameters_say_all_that_a_case_is_drawn_from(op)
    test_pairs.test_each_possible_pair_has_a_row_in_each_subset(op)
    test_smoke.test_smoke_has_every_dtype_layout_and_special_value(op)
    test_names.test_every_name_of_a_tier_is_read_without_the_tier(op)


def test_a_right_result_may_stay_as_it_is_when_the_inputs_change():
    """The softmax of subnormal numbers is the same for any of them."""
    op = formed("one argument")
    (case, *_) = (each for each in op.cases("smoke") if each.values == "subnormal")
    one, other = (make_problem(op, case, Draws(seed), "cpu") for seed in (1, 2))
    results = [op.reference(**each.arguments) for each in (one, other)]
    assert torch.equal(*results) and not compare_other(other, OUTPUT, *results, "again")
