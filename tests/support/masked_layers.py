"""The house's masked layers in a process of their own, and what must hold on either device."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from common.paths import ROOT

BOUND = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
"""The largest error that is rounding, as a share of a tensor's largest element."""
ALL_MASKS = ()
FORMS = [
    ("small", "bfloat16", ("0.02 of all", "nine spans")),  # test_solutions.py has the others
    ("pointers", "float32", ALL_MASKS),
    ("pointers", "bfloat16", ("0.5 of all", "one span")),  # another rounding, of the same rows
    ("descriptors", "float16", ALL_MASKS),
    ("packed", "float16", ("0.5 of all", "one span")),
]  # fmt: skip
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
Told = Callable[..., Any]


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
                stack.callback(process.kill)  # it would take seconds to end by itself
            print(json.dumps(words), file=process.stdin, flush=True)
            answer = process.stdout.readline()
            assert answer, "it ended; its complaint stands on stderr"
            return json.loads(answer)

        yield told


def require_small_errors(told: Told, form: str, dtype: str, some: tuple[str, ...]) -> None:
    """Assert that output and gradients are right under every mask."""
    errors = told("errors", form, dtype, *some)
    assert {name.split()[0] for name in errors} == {"masked_linear", "masked_ffn"}
    assert len(errors) == (2 * len(some) or 18)
    for name, by_tensor in errors.items():
        assert len(by_tensor) == (8 if name.startswith("masked_ffn") else 4)
        for tensor, error in by_tensor.items():
            assert error <= BOUND[dtype], (name, tensor)


def require_training(told: Told, steps: int, seeds: int, near: float) -> None:
    """Assert that the losses of a seed are plain torch's, nearer than those of two seeds."""
    runs = [told("train", str(steps), str(seed)) for seed in range(seeds)]
    for ours, eager in runs:
        assert len(ours) == len(eager) == steps
        assert ours[-1] < 0.8 * ours[0]
        assert all(abs(a - b) <= near * b for a, b in zip(ours, eager, strict=True))
    ends = [eager[-1] for _, eager in runs]
    apart = max((abs(a - b) for a, b in pairwise(ends)), default=1.0)
    assert all(abs(ours[-1] - eager[-1]) < apart for ours, eager in runs)


def require_plans(told: Told) -> None:
    """Assert that a plan has each token once, and the whole tiles of each kind first."""
    right = told("partitions")
    assert len(right) == 70
    assert all(right.values()), [name for name, each in right.items() if not each]


def require_kept_plans(told: Told) -> None:
    """Assert that a plan is kept for the same unchanged mask alone."""
    kept = told("plans")
    assert [name for name, same in kept.items() if same] == ["same mask"]
    assert len(kept) == 5
