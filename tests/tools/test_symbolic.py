"""triton-viz itself, where it is installed: what it finds, and what each patch of it is for."""

from __future__ import annotations

import importlib.util

import pytest

from common.paths import CONTRIBUTORS, ROOT
from tests.support.sanitizing import HOUSE, PLAIN, ROTATE_HALF, symbolic, written

pytestmark = pytest.mark.slow

installed = pytest.mark.skipif(
    not importlib.util.find_spec("triton_viz"), reason="triton-viz is not installed"
)


@installed
@pytest.mark.parametrize(
    ("kernel", "case", "where"),
    [
        ("row_overrun/rope", "sbhd-9x1x1x6-float32", "reads outside of x, line 21 of rope.py"),
        ("one_feature_too_many/rope", "sbhd-9x1x1x6-float32", "writes outside of y, line 29"),
        ("one_head_only/rope", "sbhd-7x2x3x16-float32", "reads outside of x, line 23 of rope.py"),
        ("one_element_too_many/rotate_half", "10x2x4x8-float32", "writes outside of y, line 20"),
        (
            "freqs_stride_ignored/rope",
            "sbhd-5x2x3x12-float32-d2=8-freqs=strided",
            "outside of freqs",
        ),
    ],
)
def test_the_corpus_is_found(kernel, case, where):
    path = ROOT / "tests" / "corpus" / "wrong" / f"{kernel}.py"
    ((row),) = symbolic(PLAIN, path, [case])
    assert where in "; ".join(row["found"])


@installed
def test_what_it_cannot_follow_is_said():
    path = ROOT / "tests" / "corpus" / "wrong" / "wild_pointer" / "rotate_half.py"
    (row,) = symbolic(PLAIN, path, ["10x2x4x8-float32"])
    assert (row["found"], row["stopped"]) == ([], "Eval for op left_shift is not implemented")


@installed
def test_house_is_clean():
    rows = symbolic(PLAIN, HOUSE.path, [case.name for case in ROTATE_HALF.cases("smoke")])
    assert not any(row["found"] for row in rows)
    assert sum(not row["stopped"] for row in rows) > 10
    names = ["sbhd-5x2x2x16-float16-strided-paired", "bshd-2x6x3x12-float32-interleaved-strided"]
    rows = symbolic(PLAIN, CONTRIBUTORS / "house" / "rope.py", names)
    assert [row["found"] for row in rows] == [[], []]


# What each patch of `Sanitizer` is for; without it the answer is the other.
VIEW = """
    def kernel(x, y, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        cols = tl.arange(0, BLOCK)
        tl.store(y + row * BLOCK + cols, tl.load(x + row * 8 + cols))

    def rotate_half(x):
        part = x.view(-1, 8)[:, 3:5]
        kernel[(part.shape[0],)](part, torch.empty(part.shape), 2)
        return x
"""
AGAIN = """
    def kernel(x, index, BLOCK: tl.constexpr):
        lanes = tl.arange(0, BLOCK)
        tl.load(x + tl.load(index + lanes))

    def rotate_half(x):
        index = torch.arange(4)
        kernel[(1,)](x, index, 4)
        kernel[(1,)](x, index + 1_000_000, 4)
        return x
"""
MOVED = """
    def kernel(x, n, BLOCK: tl.constexpr):
        lanes = tl.arange(0, BLOCK)
        for k in range(0, tl.cdiv(n, BLOCK)):
            tl.load(x + lanes, lanes < n - k * BLOCK)
            x += BLOCK

    def rotate_half(x):
        kernel[(1,)](x, x.numel(), 256)
        return x
"""
NESTED = """
    def kernel(x, rows, width: tl.constexpr):
        for row in range(rows):
            for col in range(width):
                tl.load(x + row * width + col)

    def rotate_half(x):
        kernel[(1,)](x, x.numel() // 8, 8)
        return x
"""
HEAD = """
    import torch
    import triton
    import triton.language as tl

    @triton.jit"""


@installed
@pytest.mark.parametrize(
    ("patch", "text", "clean"),
    [
        ("arg_callback", VIEW, True),
        ("pre_run_callback", AGAIN, False),
        ("register_for_loop_callback", MOVED, True),
        ("register_for_loop_callback", NESTED, True),
    ],
)
def test_a_patch_is_needed(tmp_path, patch, text, clean):
    path = written(tmp_path, HEAD + text).path
    without = PLAIN.replace("symbolic;", f"symbolic; del symbolic.Sanitizer.{patch};")
    for program, as_it_is in ((PLAIN, clean), (without, not clean)):
        (row,) = symbolic(program, path, ["10x2x4x8-float32"])
        assert (not row["found"], row["stopped"]) == (as_it_is, "")
