"""The house's masked layers: both forms of their kernels, many masks, training, compilation."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from common.paths import ROOT
from tests.support import masked_layers
from tests.support.masked_layers import ENVIRONMENT, FORMS


@pytest.mark.parametrize(("form", "dtype", "some"), FORMS)
@pytest.mark.slow
def test_output_and_gradients_are_right_under_every_mask(told, form, dtype, some):
    masked_layers.require_small_errors(told, form, dtype, some)


@pytest.mark.slow
def test_a_model_trains_as_with_plain_torch(told):
    masked_layers.require_training(told, steps=4, seeds=1, near=1e-4)


@pytest.mark.slow
def test_torch_compile_takes_the_layers_without_a_graph_break(told):
    assert told("compile") < 1e-6


def test_a_plan_has_each_token_once_and_the_whole_tiles_of_each_kind_first(told):
    masked_layers.require_plans(told)


def test_a_plan_is_kept_for_the_same_unchanged_mask_alone(told):
    masked_layers.require_kept_plans(told)


@pytest.mark.slow
def test_small_ops_of_a_dtype_share_their_kernels():
    """Without a GPU the grader compiles each launch of some 170 cases: minutes, if none were."""
    command = [sys.executable, "-m", "tests.support.kernels.masked_small"]
    ran = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    kernels = json.loads(ran.stdout)
    assert len(kernels) == 6
    assert set(kernels[:4]) == {9}
    assert kernels[-1] <= 13  # many tokens' sums of a weight are split
