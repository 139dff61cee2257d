"""A gradient that is differentiated again is right or an error: never wrong without a word."""

from __future__ import annotations

import pytest

from common import ops, solutions
from common.paths import CONTRIBUTORS, ROOT
from tests.support import interpreting

pytestmark = pytest.mark.slow

HONEST = ROOT / "tests" / "corpus" / "honest"
TOLD_APART = {"twice_differentiable": "right", "persistent_programs": "wrong"}
TEMPLATES = (CONTRIBUTORS / "_template" / f"{op}.py" for op in ops.names())
FILES = {
    **{each.name: each.path for each in solutions.discover()},
    **{f"_template/{file.stem}": file for file in TEMPLATES if file.exists()},
}


@pytest.fixture(scope="module")
def found():
    """Return by `folder/name` and way what becomes of a second derivative, in a new process."""
    files = [*FILES.values(), *(HONEST / name / "rotate_half.py" for name in TOLD_APART)]
    return interpreting.run("second_derivatives.py", *files)


@pytest.mark.parametrize("name", FILES)
def test_a_second_derivative_is_right_or_an_error(name, found):
    linear = name.removesuffix("_fast") in ("house/rope", "house/rope_qk", "house/rotate_half")
    assert found[name]
    assert set(found[name].values()) <= ({"right"} if linear else {"right", "error"})


@pytest.mark.parametrize("name", TOLD_APART)
def test_what_is_right_and_what_is_lost_are_told_apart(name, found):
    by_way = found[f"{name}/rotate_half"]
    assert {by_way[f"of the output, {call}"] for call in ("grad", "backward")} == {TOLD_APART[name]}
