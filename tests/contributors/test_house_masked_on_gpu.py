"""The house's masked layers on a GPU: what holds without one too, and what only a GPU shows."""

from __future__ import annotations

import pytest

from tests.support import masked_layers
from tests.support.masked_layers import BOUND, FORMS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("form", "dtype", "some"), FORMS)
def test_output_and_gradients_are_right_under_every_mask(told, form, dtype, some):
    masked_layers.require_small_errors(told, form, dtype, some)


def test_a_model_trains_as_with_plain_torch(told):
    masked_layers.require_training(told, steps=200, seeds=3, near=2e-2)


def test_torch_compile_takes_the_layers_without_a_graph_break(told):
    assert told("compile") < 2e-2


def test_cuda_graphs_of_torch_compile_follow_a_mask_that_changes_in_place(told):
    assert max(told("reduced")) < 2e-2


def test_a_plan_has_each_token_once_and_the_whole_tiles_of_each_kind_first(told):
    masked_layers.require_plans(told)


def test_a_plan_is_kept_for_the_same_unchanged_mask_alone(told):
    masked_layers.require_kept_plans(told)


def test_every_size_is_right_in_the_form_that_it_takes(told):
    errors = told("sizes")
    assert len(errors) == 40
    wrong = {name: each for name, each in errors.items() if max(each.values()) > BOUND["bfloat16"]}
    assert not wrong


def test_forward_keeps_the_pre_activations_alone(told):
    for kept, activations in told("memory").values():
        assert activations <= kept <= 1.02 * activations + 2**17  # rows that fill tiles; a plan


def test_a_planned_launch_does_as_an_ordinary_one_does(told):
    same = told("planned")
    assert len(same) == 4 and all(same.values()), same


def test_a_cuda_graph_makes_its_plan_anew(told):
    assert told("captured") < 2e-2
