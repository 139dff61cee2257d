"""A case is read from its name, whether a tier has it or not."""

import dataclasses
import re

import pytest

from common import ops
from common.errors import UserError
from common.grading.device import tier_cases
from common.ops._names import named, of_head_and_options, of_ops
from common.solutions import Solution
from tests.support.ops import ALL

UNNAMED = {"rate", "scale", "ranked_by", "lengths", "angles", "s", "b"}
"""What a name may leave open, of one op or another."""


@pytest.mark.parametrize("op", ALL, ids=lambda op: op.name)
def test_every_name_of_a_tier_is_read_without_the_tier(op):
    read = 0
    for case in (*op.cases("smoke"), *op.cases("board"), *op.cases("plot")):
        if re.search(r"\b0x|x0(x|-)", case.name):
            continue  # an empty tensor has no time
        again = of_head_and_options(type(case), case.name.split("-"))
        assert again.name == case.name
        apart = {name for name, value in vars(case).items() if getattr(again, name) != value}
        assert apart <= UNNAMED, case.name
        read += 1
    assert read > 60


def test_a_name_of_no_tier_is_a_case_of_the_ops_that_can_say_it(tmp_path):
    names = ["bshd-1x8192x16x128-bfloat16-paired", "8192x2048x5632-bfloat16-span"]
    folder = [Solution(tmp_path / "a" / f"{op}.py", op) for op in ("rope", "masked_ffn")]
    found = {op.name: [case.name for case in cases]
             for op, cases in tier_cases(folder, "board", "cpu", names=names)}  # fmt: skip
    assert found == {"rope": ["bshd-1x12x4x128-bfloat16-paired-twin"],
                     "masked_ffn": ["48x128x352-bfloat16-span-twin"]}  # fmt: skip
    with pytest.raises(UserError, match="8x16-float32-spa of masked_ffn: 8x16 stands in place"):
        next(tier_cases(folder, "board", "cpu", names=["8x16-float32-spa"]))


def test_the_tokens_of_a_packed_name_are_cut_to_sequences():
    rope = ops.load("rope")
    own = named(rope, "thd-64x65536x32x128-bfloat16-paired")
    assert (own.lengths[:3], len(own.lengths), sum(own.lengths)) == ((512, 1536, 512), 64, 65536)
    odd = named(rope, "thd-5x60x2x16-float32-cp=1of2")
    assert len(odd.lengths) == 5 and sum(odd.lengths) == 60
    assert not any(length % 4 for length in odd.lengths)
    board = next(case for case in rope.cases("board") if case.lengths)
    assert named(rope, board.name) == board, "a tier's own lengths"


@pytest.mark.parametrize(
    ("op", "name", "fault"),
    [
        ("rope", "bshd-1x8x16x128-bf16", "bf16 stands in place of a dtype; did you mean bfloat16?"),
        ("rope", "bshd-1x8x16-bfloat16", "1x8x16 stands in place of the sizes b, s, h, d"),
        ("rope", "bshd-1x8x0x16-bfloat16", "1x8x0x16 has a size of 0"),
        ("rope", "bshd-1x8x4x16-bfloat16-d2=18", "d2=18 is no even part of d=16"),
        ("rope", "bshd-1x8x4x16-bfloat16-pared", "no option is called 'pared'; did you mean"),
        ("rope", "bshd-1x8x4x16-bfloat16-paired-paired", "'paired' repeats or contradicts"),
        ("rope", "sbhd-8x1x4x16-float32-cp=2of2", "2 ranks have no rank 2"),
        ("rope", "sbhd-8x1x4x8-float32-starts-cp=1of2", "start_positions with context parallelism"),
        ("rope", "thd-5x62x2x16-float32-cp=1of2", "62 tokens have no 4 chunks of one length"),
        ("masked_linear", "8x16x16-float32", "nothing stands in place of a mask or 8spans"),
        ("masked_linear", "8x16x16-float32-9spans", "8 tokens have no 9 sequences"),
        ("masked_linear", "8x16x16-float32-random-120%", "120% is no part of a random mask"),
        ("masked_ffn", "8x16-float32-span", "8x16 stands in place of the sizes tokens, width,"),
        ("rope_qk", "thd-2x8x4x2x16-float32", "thd stands in place of a format"),
        ("rope_qk", "sbhd-8x1x4x16-float32", "8x1x4x16 stands in place of the sizes s, b, h, hk"),
        ("rope_qk", "sbhd-8x1x4x2x16-float32-starts", "no option is called 'starts'"),
        ("rotate_half", "", "nothing stands in place of sizes, such as 8192x4096"),
    ],
)
def test_an_impossible_name_says_what_is_wrong_with_it(op, name, fault):
    with pytest.raises(UserError) as raised:
        named(ops.load(op), name)
    assert str(raised.value).startswith(f"no case {name} of {op}: {fault}")
    assert "\n" not in str(raised.value)


def test_queries_and_keys_are_not_packed():
    case = dataclasses.replace(next(ops.load("rope_qk").cases("board")), tensor_format="thd")
    with pytest.raises(ValueError, match="the format is sbhd or bshd, not thd"):
        case.settled()


def test_the_beginning_of_one_name_is_enough():
    rope = ops.load("rope")
    whole = "bshd-2x5x3x80-float16-d2=24-paired"
    assert [each.name for _, each in of_ops([rope], whole[:13])] == [whole]
    with pytest.raises(UserError, match="no case bshd of rope: nothing stands"):
        of_ops([rope], "bshd")
