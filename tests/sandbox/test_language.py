"""A kernel may be written in all of the language, whatever Triton's interpreter takes of it."""

from __future__ import annotations

import pytest

from common.sandbox.interpreter.language import VERSION
from tests.support.interpreting import results

RIGHT = [float(i) for i in range(8)]
RIGHT_ALREADY = {"loops in 64 bits" if VERSION >= (3, 7) else "constants beside tensors"}
"""Right without a patch, with this Triton; here so that no patch breaks them."""
REFUSED = {
    "a function that NumPy lacks": "libdevice.erfcx",
    "a missing operation": "no new_block",
    "a scaled product": "tl.dot_scaled",
    "gluon": "Gluon",
}
"""What the interpreter cannot run, and a part of what is said of it."""


@pytest.fixture(scope="module")
def patched():
    return results("language")


@pytest.fixture(scope="module")
def bare():
    return results("language", "bare")


def test_patched_is_right(patched):
    assert {name for name, found in patched.items() if found != RIGHT} == set(REFUSED)


def test_each_patch_is_still_needed(bare):
    """A name that is missing here is one that Triton takes by now: the patch can go."""
    assert {name for name, found in bare.items() if found == RIGHT} == RIGHT_ALREADY
    assert not any(bare[name][0] for name in REFUSED)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_run_is_unsupported_and_says_so(patched, name):
    unsupported, text = patched[name]
    assert unsupported and REFUSED[name] in text
