"""What `python -m tests.generators.sweeping` times, and which of its shapes are too slow."""

import torch

from tests.generators import sweeping


def test_the_shapes_are_random_and_the_same_each_time():
    cases = list(sweeping.cases())
    assert cases == list(sweeping.cases()) and len(cases) == sweeping.SHAPES
    assert len({case.name for case in cases}) > 190
    assert {case.tensor_format for case in cases} == {"sbhd", "bshd", "thd"}
    sizes = [torch.Size(case.shape).numel() * getattr(torch, case.dtype).itemsize for case in cases]
    assert min(sizes) > 2**23 and max(sizes) <= 2**28 and sum(size > 2**26 for size in sizes) > 80


def test_a_held_shape_is_slow_where_its_copy_takes_long_enough_to_say():
    few, many = (
        next(case.name for case in sweeping.cases() if sweeping.is_held(case) == held)
        for held in (False, True)
    )
    at, below = sweeping.LONG / sweeping.LEAST, 1.01 * sweeping.LONG / sweeping.LEAST
    fine = [
        sweeping.Swept(few, 10 * below, 2 * sweeping.LONG),
        sweeping.Swept(many, 10 * below, sweeping.LONG),
        sweeping.Swept(many, 2 * at, 2 * sweeping.LONG),
    ]
    found = sweeping.Swept(many, 2 * below, 2 * sweeping.LONG)
    assert sweeping.slow([*fine, found]) == [found]
    assert sweeping.long([*fine, found]) == [fine[0], fine[2], found]


def test_a_slow_shape_is_shown_first_and_told_in_words():
    swept = [sweeping.Swept("slow", 40.0, 20.0), sweeping.Swept("fast", 40.0, 38.0)]
    assert sweeping.table(swept).splitlines()[1].split() == ["0.500", "40.0", "20.0", "slow"]
    assert sweeping.distribution(swept).startswith("2 shapes: worst 0.500")
