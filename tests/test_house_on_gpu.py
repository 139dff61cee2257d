"""The house's rope on random shapes: near a copy wherever memory decides the time."""

import pytest
import torch

from tests import sweeping

LEAST, LONG = 0.90, 20
"""The least share of a copy's speed, where the copy takes longer than so many microseconds."""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_no_long_shape_is_far_from_a_copy(capsys):
    swept = [each for each in sweeping.sweep() if each.copied > LONG]
    with capsys.disabled():
        print(f"\n{torch.cuda.get_device_name()}, {sweeping.distribution(swept)}")
    assert len(swept) > 100
    slow = [each for each in swept if each.share < LEAST]
    assert not slow, sweeping.table(slow)


def test_the_shapes_are_random_and_the_same_each_time():
    cases = list(sweeping.cases())
    assert cases == list(sweeping.cases()) and len(cases) == sweeping.SHAPES
    assert len({case.name for case in cases}) > 190
    assert {case.tensor_format for case in cases} == {"sbhd", "bshd", "thd"}
    sizes = [torch.Size(case.shape).numel() * getattr(torch, case.dtype).itemsize for case in cases]
    assert min(sizes) > 2**23 and max(sizes) <= 2**28 and sum(size > 2**26 for size in sizes) > 80


def test_a_slow_shape_is_shown_first_and_told_in_words():
    swept = [sweeping.Swept("slow", 40.0, 20.0), sweeping.Swept("fast", 40.0, 38.0)]
    assert sweeping.table(swept).splitlines()[1].split() == ["0.500", "40.0", "20.0", "slow"]
    assert sweeping.distribution(swept).startswith("2 shapes: worst 0.500")
