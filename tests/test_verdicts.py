"""Failures have kinds, whatever their reasons say."""

import json

import pytest
import torch

from common.errors import Kind, kind_of, out_of_memory
from common.sandbox.failures import judge
from common.source import Place
from common.verdicts import Failure, Verdict

INFERENCE = Kind.INFERENCE_THREAD


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), Kind.OUT_OF_MEMORY),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED"), Kind.OUT_OF_MEMORY),
        (RuntimeError("CUBLAS_STATUS_INTERNAL_ERROR when calling x"), Kind.OUT_OF_MEMORY),
        (RuntimeError("CUDA error: an illegal memory access was met"), Kind.ILLEGAL_ACCESS),
        (RuntimeError("Inplace update to inference tensor outside InferenceMode"), INFERENCE),
        (ValueError("out of memory"), Kind.NONE),
        (Failure("CRASHED", "out of memory"), Kind.NONE),
        (Failure("CRASHED", "it ended", Kind.KILLED), Kind.KILLED),
    ],
)
def test_the_words_of_other_libraries_tell_the_kind(error, kind):
    assert kind_of(error) is kind


def test_a_kind_reaches_the_harness_in_the_reply_and_a_made_up_one_is_none():
    failure = Failure("RUNTIME_ERROR", "some words", Kind.DISK, (Place("rope.py", 3, "y = x"),))
    told = Failure.from_reply(json.loads(json.dumps(failure.reply)))
    told.add_note("that the verdict does not need")
    verdict = Verdict("alice/rope", "rope", "c", "forward", **told.fields)
    assert (verdict.verdict, verdict.reason) == ("RUNTIME_ERROR", "some words")
    assert (verdict.kind, verdict.places) == (Kind.DISK, failure.places)
    for junk in ("made up", 3, None, ["killed"]):
        made_up = {"verdict": "CRASHED", "reason": "", "kind": junk}
        assert Failure.from_reply(made_up).kind is Kind.NONE


FULL = "out of memory: asked for 3.10 GiB, 1.20 GiB of 15.99 GiB free"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "CUDA out of memory. Tried to allocate 3.10 GiB. GPU 0 has a total capacity of"
            " 15.99 GiB of which 1.20 GiB is free. Including non-PyTorch memory, this process has",
            FULL,
        ),
        ("Triton Error [CUDA]: out of memory: no more", "out of memory"),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`", "out of memory"),
    ],
)
def test_the_reason_is_one_short_line(text, line):
    for error in (torch.OutOfMemoryError(text), RuntimeError(text)):
        assert out_of_memory(error) == line
        said = {"verdict": "RUNTIME_ERROR", "reason": line, "kind": "out of memory"}
        assert judge(error) == said
        assert out_of_memory(Failure.from_reply(said)) == line
