"""A GPU's memory that ran out, in the words of others and in one line of ours."""

from __future__ import annotations

import pytest
import torch

from common.errors import out_of_memory
from common.sandbox.failures import judge

FULL = "out of memory: asked for 3.10 GiB, 1.20 GiB of 15.99 GiB free"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "CUDA out of memory. Tried to allocate 3.10 GiB. GPU 0 has a total capacity of"
            " 15.99 GiB of which 1.20 GiB is free. Including non-PyTorch memory, this process has",
            FULL,
        ),
        ("Triton Error [CUDA]: out of memory", "out of memory"),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`", "out of memory"),
    ],
)
def test_the_reason_is_one_short_line(text, line):
    for error in (torch.OutOfMemoryError(text), RuntimeError(text)):
        assert out_of_memory(error) == line
        said = {"verdict": "RUNTIME_ERROR", "reason": line, "kind": "out of memory"}
        assert judge(error) == said
