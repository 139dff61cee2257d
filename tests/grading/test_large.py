"""Offsets that wrap in dense tensors of more than 2^31 elements, found without their memory."""

import re

import pytest

from common import ops
from common.grading.compiling import Compiler
from tests.support.workers import graded_as, written

KERNEL = '''
"""Inputs are copied into contiguous tensors."""
import torch
import triton
import triton.language as tl


@triton.jit
def _turn(x, y, rows, width, SIGN: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr):
    row = {row}
    column = tl.arange(0, HALF)[None, :]
    on = (row < rows) & (column < width // 2)
    {at}
    a = tl.load(x + at, on)
    b = tl.load(x + at + width // 2, on)
    tl.store(y + at, -b * SIGN, on)
    tl.store(y + at + width // 2, a * SIGN, on)


def _half(x, sign):
    x = x.contiguous()
    y = torch.empty_like(x)
    if not x.numel():
        return y
    width = x.shape[-1]
    rows = x.numel() // width
    half = triton.next_power_of_2(max(width // 2, 1))
    _turn[(triton.cdiv(rows, 16),)](x, y, rows, width, sign, 16, half)
    return y


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _half(x, 1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return _half(grad, -1)


def rotate_half(x):
    return _RotateHalf.apply(x)
'''
ROWS = "tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]"
RIGHT = ROWS, "at = row.to(tl.int64) * width + column"
HALF = ops.load("rotate_half")
FAR, NEAR = (
    next(case for case in HALF.cases("smoke") if case.layout == layout)
    for layout in ("far", "contiguous")
)


@pytest.fixture(scope="module")
def compiler():
    with Compiler("cpu") as started:
        yield started


def solution_of(folder, row, at):
    return written(folder, KERNEL.replace("{row}", row).replace("{at}", at))


def notes_of(compiler, case, solution):
    """Return the notes of a passed case, by direction."""
    noted = compiler.submit(graded_as(HALF, case, solution)).result().verdicts
    assert {verdict.verdict for verdict in noted.values()} == {"PASSED"}
    return {direction: verdict.notes for direction, verdict in noted.items()}


PRODUCT = r"\d+ \* 128 does not fit int32, line \d+ of rotate_half.py: row \* width"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "at", "words"),
    [
        ("tl.program_id(0) * ROWS", "at = row * width + column", PRODUCT),
        (ROWS, "at = row * width + column", PRODUCT),
        (ROWS, "at = (row.to(tl.int64) * width + column).to(tl.int32)",
         r" 2\d{9} does not fit int32, line \d+ of .*\.to\(tl\.int32\)"),
    ],
)  # fmt: skip
def test_an_offset_that_wraps_in_a_copy_is_noted_with_its_product(
    compiler, tmp_path, row, at, words
):
    solution = solution_of(tmp_path, row, at)
    for notes in notes_of(compiler, FAR, solution).values():
        assert [note.kind for note in notes] == ["WRAPPED"]
        assert notes[0].detail.startswith(f"at {HALF.large.name}: program (")
        assert re.search(words, notes[0].detail), notes
    assert {*notes_of(compiler, NEAR, solution).values()} == {()}


@pytest.mark.slow
def test_an_offset_in_int64_is_right_in_large_tensors(compiler, tmp_path):
    assert {*notes_of(compiler, FAR, solution_of(tmp_path, *RIGHT)).values()} == {()}


@pytest.mark.parametrize("name", ops.names())
def test_each_op_has_a_case_of_more_than_2_to_the_31_dense_elements(name):
    op = ops.load(name)
    assert op.large.layout == op.large.upstream == "contiguous"
    assert op.elements(op.large) > 2**31
    assert any(case.layout == "far" for case in op.cases("smoke"))
    assert op.large.name not in {
        case.name for tier in ("smoke", "board") for case in op.cases(tier)
    }
