"""The programs and iterations that stand for all of a launch."""

from __future__ import annotations

import random

import pytest

from common.sandbox.counted import sample


@pytest.mark.parametrize("total", [1, 2, 7, 8, 9, 1000, 524_288])
def test_drawn_programs_stand_for_all(total):
    found = sample.drawn(total, 8, random.Random(0))
    assert sum(weight for _, weight in found) == total
    places = [index for index, _ in found]
    assert places == sorted(set(places)) and places[0] == 0 and places[-1] == total - 1


@pytest.mark.parametrize("total", [0, 1, 4, 5, 6, 1000])
def test_iterations_stand_for_all(total):
    found = sample.iterations(total)
    assert sum(weight for _, weight in found) == total and len(
        {index for index, _ in found}
    ) == len(found)
