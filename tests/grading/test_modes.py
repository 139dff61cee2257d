"""The further modes of a call: what is asked, and what counts."""

from __future__ import annotations

import itertools
from functools import partial

import pytest

from common import ops
from common.grading.modes import modes
from tests.support.asking import AS_IT_IS, MASKED, SAVES, verdicts_of

NO_GRAD, INFERENCE, X_ALONE, WEIGHTS_ALONE = range(4)


@pytest.fixture
def verdicts(tmp_path, fork_server, monkeypatch):
    """Return a function from the source of a masked_linear, and choices, to its verdicts."""
    return partial(verdicts_of, fork_server, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("mode", "first", "wanted"),
    [
        (NO_GRAD, "if not torch.is_grad_enabled(): return x * 2", "INCORRECT_SHAPE"),
        (INFERENCE, "if torch.is_inference_mode_enabled(): 1 / 0", "RUNTIME_ERROR"),
        (X_ALONE, "if not w_v.requires_grad: 1 / 0", "RUNTIME_ERROR"),
        (WEIGHTS_ALONE, "if not x.requires_grad: 1 / 0", "RUNTIME_ERROR"),
    ],
)
def test_a_mode_counts_to_forward(verdicts, mode, first, wanted):
    found = verdicts(SAVES.format(**{**AS_IT_IS, "first": first}), mode=mode)
    assert found["forward"].verdict == wanted, found["forward"]
    assert found["forward"].reason.endswith(modes(MASKED, "cpu")[mode].text)
    assert found["backward"].verdict == "PASSED"


@pytest.mark.parametrize("place", ["first", "before"])
def test_what_a_mode_leaves_unsupported_is_noted(verdicts, place):
    """Coverage must not depend on the draw."""
    condition = {"first": "not w_v.requires_grad", "before": "not ctx.needs_input_grad[1]"}[place]
    source = SAVES.format(
        **{**AS_IT_IS, place: f"if {condition}: raise NotImplementedError('some')"}
    )
    found = verdicts(source, mode=X_ALONE)
    assert [v.verdict for v in found.values()] == ["PASSED", "PASSED"], found
    assert found["forward"].notes == (f"some, {modes(MASKED, 'cpu')[X_ALONE].text}",)


def test_threads_that_write_slices_are_noted(verdicts):
    source = (
        "import torch\nfrom concurrent.futures import ThreadPoolExecutor\n\n"
        "def masked_linear(x, w_v, w_t, mask):\n"
        "    right = torch.where(mask[:, None], x @ w_v.T, x @ w_t.T)\n"
        "    with ThreadPoolExecutor(1) as pool:\n"
        "        pool.submit(lambda: right.mul_(1)).result()\n    return right\n"
    )
    found = verdicts(source, mode=INFERENCE)["forward"]
    assert found.verdict == "PASSED", found
    assert "Inplace update" in found.notes[0]


def test_a_table_kept_for_each_width_is_no_fault(verdicts):
    """Made in inference mode it could not be saved for backward: that mode is asked last."""
    source = (
        "import functools\nimport torch\n\n@functools.cache\n"
        "def ones(count):\n    return torch.ones(count, 1, dtype=torch.bfloat16)\n\n"
        "def masked_linear(x, w_v, w_t, mask):\n"
        "    return torch.where(mask[:, None], x @ w_v.T, x @ w_t.T) * ones(len(x))\n"
    )
    found = verdicts(source, mode=INFERENCE)
    assert [v.verdict for v in found.values()] == ["PASSED", "PASSED"], found


@pytest.mark.parametrize("mode", [NO_GRAD, X_ALONE])
def test_what_backward_changed_is_not_forwards(verdicts, mode):
    """Also where forward is asked after it, and two sets of inputs are laid."""
    source = SAVES.format(**{**AS_IT_IS, "before": "grad.mul_(2)"})
    found = verdicts(source, mode=mode, interleaved=True)
    assert [v.verdict for v in found.values()] == ["PASSED", "MUTATED_INPUT"], found


@pytest.mark.slow
def test_a_solution_without_gradients_is_unsupported_in_backward_alone(verdicts):
    source = (
        "import torch\n\ndef masked_linear(x, w_v, w_t, mask):\n"
        "    return torch.where(mask[:, None], x @ w_v.T, x @ w_t.T).detach()\n"
    )
    for mode in range(5):
        for interleaved in (False, True):
            found = verdicts(source, mode=mode, interleaved=interleaved)
            assert [v.verdict for v in found.values()] == ["PASSED", "UNSUPPORTED"], found


def test_modes_of_a_gpu_have_a_stream_and_parts_are_never_whole():
    for op in map(ops.load, ops.names()):
        several = modes(op, "cpu")
        assert {mode.setting for mode in modes(op, "cuda")} - {m.setting for m in several} == {
            "stream"
        }
        frozen = [mode.differentiable for mode in several if not mode.setting]
        assert frozen and op.differentiable not in frozen
        assert len({*frozen}) == len(frozen)
        assert op.differentiable[1:] in frozen


def test_of_two_inputs_each_is_frozen_without_the_other():
    for op in map(ops.load, ops.names()):
        parts = [mode.differentiable for mode in modes(op, "cpu") if not mode.setting]
        for one, other in itertools.permutations(op.differentiable, 2):
            assert any(one in part and other not in part for part in parts), (one, other)


@pytest.mark.parametrize("op", ["masked_linear", "masked_ffn"])
def test_each_half_of_the_weights_is_trained_with_x(op):
    x, *weights = ops.load(op).differentiable
    parts = [mode.differentiable for mode in modes(ops.load(op), "cpu") if not mode.setting]
    middle = len(weights) // 2
    assert (x, *weights[:middle]) in parts
    assert (x, *weights[middle:]) in parts


def test_an_empty_part_is_named():
    (mode,) = (mode for mode in modes(ops.load("rotate_half"), "cpu") if not mode.setting)
    assert mode.text == "where no input takes a gradient"
