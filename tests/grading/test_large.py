"""Offsets that wrap in dense tensors of more than 2^31 elements, found without their memory."""

import re

import pytest

from common import ops
from common.grading.compiling import Compiler
from common.paths import ROOT
from tests.support.workers import graded_as, written

KERNEL = (ROOT / "tests/corpus/honest/int64_tile_of_copies/rotate_half.py").read_text()
ROWS = "tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]"
AT = "row.to(tl.int64) * width + column.to(tl.int32)"
HALF = ops.load("rotate_half")
FAR, NEAR = (
    next(case for case in HALF.cases("smoke") if case.layout == layout)
    for layout in ("far", "contiguous")
)


@pytest.fixture(scope="module")
def compiler():
    with Compiler("cpu") as started:
        yield started


def solution_of(folder, row=ROWS, at=AT):
    assert ROWS in KERNEL and AT in KERNEL
    return written(folder, KERNEL.replace(ROWS, row).replace(AT, at))


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
        ("tl.program_id(0) * ROWS", "row * width + column", PRODUCT),
        (ROWS, "row * width + column", PRODUCT),
        (ROWS, "(row.to(tl.int64) * width + column).to(tl.int32)",
         r" 2\d{9} does not fit int32, line \d+ of .*\.to\(tl\.int32\)"),
    ],
)  # fmt: skip
def test_an_offset_that_wraps_in_a_copy_is_noted_by_its_product(compiler, tmp_path, row, at, words):
    solution = solution_of(tmp_path, row, at)
    for notes in notes_of(compiler, FAR, solution).values():
        assert [note.kind for note in notes] == ["WRAPPED"]
        assert notes[0].detail.startswith(f"at {HALF.large.name}: program (")
        assert re.search(words, notes[0].detail), notes
    assert {*notes_of(compiler, NEAR, solution).values()} == {()}


@pytest.mark.slow
def test_an_offset_in_int64_is_right_in_large_tensors(compiler, tmp_path):
    assert {*notes_of(compiler, FAR, solution_of(tmp_path)).values()} == {()}


@pytest.mark.parametrize("name", ops.names())
def test_each_op_has_a_case_of_more_than_2_to_the_31_dense_elements(name):
    op = ops.load(name)
    assert op.large.layout == op.large.upstream == "contiguous"
    assert op.elements(op.large) > 2**31
    assert any(case.layout == "far" for case in op.cases("smoke"))
    known = {case.name for tier in ("smoke", "board") for case in op.cases(tier)}
    assert op.large.name not in known
