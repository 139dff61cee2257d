"""Reductions and scans by any function: few calls of it on blocks, and the same results."""

from __future__ import annotations

import pytest

from tests.support.interpreting import results

LAST, FROM_THE_END = "the last axis", "an axis from the end"
BRANCH = "a branch"
"""The function decides on a value, so that Triton's own way is taken."""


@pytest.fixture(scope="module")
def patched():
    return results("reductions")


@pytest.fixture(scope="module")
def bare():
    return results("reductions", "bare")


def test_blocks_have_the_results_of_elements(patched, bare):
    other = {kind for kind in bare if patched[kind]["out"] != bare[kind]["out"]}
    assert other == {FROM_THE_END}
    assert all(any(each["out"]) for each in bare.values())


def test_each_patch_is_still_needed(patched, bare):
    """A kind that is missing here is one that Triton combines by blocks itself."""
    fewer = {kind for kind in bare if 10 * patched[kind]["operands"] < bare[kind]["operands"]}
    assert fewer == bare.keys() - {BRANCH}


def test_an_axis_may_be_counted_from_the_end(patched, bare):
    assert patched[FROM_THE_END]["out"] == patched[LAST]["out"]
    assert isinstance(bare[FROM_THE_END]["out"], str), "Triton does this right now"
