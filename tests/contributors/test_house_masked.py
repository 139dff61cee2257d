"""The house's masked layers: both forms of their kernels, many masks, training, compilation."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from itertools import pairwise

import pytest
import torch

from common.paths import ROOT

GPU = torch.cuda.is_available()
BOUND = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
"""The largest error that is rounding, as a share of a tensor's largest element."""
EVERY = ()
FORMS = [
    ("small", "bfloat16", ("0.02 of all", "nine spans")),  # test_solutions.py has the others
    ("pointers", "float32", EVERY),
    ("pointers", "bfloat16", ("0.5 of all", "one span")),  # another rounding, of the same rows
    ("descriptors", "float16", EVERY),
]  # fmt: skip
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def told():
    """Return a function that asks tests.support.kernels.masked_layers, in its own process."""
    command = [sys.executable, "-m", "tests.support.kernels.masked_layers"]
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    process = None
    with contextlib.ExitStack() as stack:

        def told(*words: str):
            nonlocal process
            if process is None or process.poll() is not None:
                process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, text=True, **pipes)
                stack.enter_context(process)
            print(json.dumps(words), file=process.stdin, flush=True)
            answer = process.stdout.readline()
            assert answer, "it ended; its complaint stands on stderr"
            return json.loads(answer)

        yield told


@pytest.mark.parametrize(("form", "dtype", "some"), FORMS)
@pytest.mark.slow
def test_output_and_gradients_are_right_under_every_mask(told, form, dtype, some):
    errors = told("errors", form, dtype, *some)
    assert {name.split()[0] for name in errors} == {"masked_linear", "masked_ffn"}
    assert len(errors) == (2 * len(some) or 18)
    for name, by_tensor in errors.items():
        assert len(by_tensor) == (8 if name.startswith("masked_ffn") else 4)
        for tensor, error in by_tensor.items():
            assert error <= BOUND[dtype], (name, tensor)


@pytest.mark.slow
def test_a_model_trains_as_with_plain_torch(told):
    """The losses of one seed lie nearer to plain torch's than those of two seeds to each other."""
    steps = 200 if GPU else 4
    runs = [told("train", str(steps), str(seed)) for seed in range(3 if GPU else 1)]
    for ours, eager in runs:
        assert len(ours) == len(eager) == steps
        assert ours[-1] < 0.8 * ours[0]
        assert all(
            abs(a - b) <= (2e-2 if GPU else 1e-4) * b for a, b in zip(ours, eager, strict=True)
        )
    ends = [eager[-1] for _, eager in runs]
    apart = max((abs(a - b) for a, b in pairwise(ends)), default=1.0)
    assert all(abs(ours[-1] - eager[-1]) < apart for ours, eager in runs)


@pytest.mark.slow
def test_torch_compile_takes_the_layers_without_a_graph_break(told):
    assert told("compile") < (2e-2 if GPU else 1e-6)


def test_a_plan_has_each_token_once_and_the_whole_tiles_of_each_kind_first(told):
    right = told("partitions")
    assert len(right) == 70
    assert all(right.values()), [name for name, each in right.items() if not each]


def test_a_plan_is_kept_for_the_same_unchanged_mask_alone(told):
    kept = told("plans")
    assert [name for name, same in kept.items() if same] == [
        "same mask", "visual rows follow the change",
    ]  # fmt: skip
    assert len(kept) == 6


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


needs_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU")


@needs_gpu
def test_every_size_is_right_in_the_form_that_it_takes(told):
    errors = told("sizes")
    assert len(errors) == 32
    wrong = {name: each for name, each in errors.items() if max(each.values()) > BOUND["bfloat16"]}
    assert not wrong


@needs_gpu
def test_forward_keeps_the_pre_activations_alone(told):
    for kept, activations in told("memory").values():
        assert activations <= kept <= 1.02 * activations + 2**17  # rows that fill tiles; a plan


@needs_gpu
def test_a_planned_launch_does_as_an_ordinary_one_does(told):
    same = told("planned")
    assert len(same) == 4 and all(same.values()), same


@needs_gpu
def test_a_cuda_graph_makes_its_plan_anew(told):
    assert told("captured") < 2e-2
