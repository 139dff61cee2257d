"""A gradient that is differentiated again is right or an error: never wrong without a word."""

from __future__ import annotations

from itertools import groupby

import pytest

from common import ops, solutions
from common.paths import CONTRIBUTORS, ROOT
from tests.support.second_derivatives import second_derivatives

pytestmark = pytest.mark.slow

HONEST = ROOT / "tests" / "corpus" / "honest"
FOLDERS = {
    handle: [each.path for each in files]
    for handle, files in groupby(solutions.discover(), key=lambda each: each.handle)
}
FOLDERS["_template"] = [CONTRIBUTORS / "_template" / f"{op}.py" for op in ops.names()]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_second_derivative_is_right_or_an_error(folder):
    found = second_derivatives(FOLDERS[folder])
    assert len(found) == len(FOLDERS[folder])
    for stem, by_way in found.items():
        assert len(by_way) == 4
        assert set(by_way.values()) <= {"right", "error"}, (stem, by_way)


def test_the_house_s_linear_maps_have_a_right_second_derivative():
    files = [CONTRIBUTORS / "house" / f"{op}.py" for op in ("rope", "rotate_half")]
    for by_way in second_derivatives(files).values():
        assert set(by_way.values()) == {"right"}


@pytest.mark.parametrize(
    ("name", "verdict"), [("twice_differentiable", "right"), ("persistent_programs", "wrong")]
)
def test_what_is_right_and_what_is_lost_are_told_apart(name, verdict):
    (by_way,) = second_derivatives([HONEST / name / "rotate_half.py"]).values()
    assert {by_way[f"of the output, {call}"] for call in ("grad", "backward")} == {verdict}
