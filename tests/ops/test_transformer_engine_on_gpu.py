"""`rope`'s reference against the function it follows, TransformerEngine's, over all its options.

Both of TransformerEngine's ways, fused and unfused, are held against the oracle by the rule that
every solution is graded by, output and gradient, under a random upstream gradient.
"""

import importlib
import importlib.util
from itertools import product

import pytest

from common.ops.rope import RopeCase
from tests.support.oracle import first_wrong

pytestmark = pytest.mark.slow
FUNCTION = "transformer_engine.pytorch.attention.rope"


@pytest.fixture(scope="module")
def apply_rotary_pos_emb():
    """Return TransformerEngine's function; a package that does not import is no failure of ours."""
    if not importlib.util.find_spec("transformer_engine"):
        pytest.skip("the package transformer_engine is not installed")
    try:
        return importlib.import_module(FUNCTION).apply_rotary_pos_emb
    except Exception as error:
        pytest.skip(f"transformer_engine does not import: {error}")


# whole sequences, of which every rank's share is even
FORMATS = [("sbhd", ()), ("bshd", ()), ("thd", (16, 24, 8)), ("thd", (16, 0, 8))]
RANKS = [(size, rank) for size in (1, 2, 4) for rank in range(size)]


def grid():
    """Yield each case that TransformerEngine can take, with whether its fused kernel takes it.

    That kernel drops the starts where cp_size > 1, so the op leaves that out too; its interleaved
    plain code fails on an empty sequence.
    """
    options = product(
        FORMATS, (False, True), (False, True), RANKS, (32, 12), ("model", "paired"),
        ("float32", "bfloat16"), (True, False),
    )  # fmt: skip
    for (tensor_format, lengths), interleaved, starts, (size, rank), d2, angles, *rest in options:
        dtype, fused = rest
        if (starts and size > 1) or (interleaved and not fused and 0 in lengths):
            continue
        case = RopeCase(
            tensor_format=tensor_format, interleaved=interleaved, starts=starts,
            lengths=lengths, cp_size=size, cp_rank=rank, d2=d2, angles=angles, dtype=dtype,
            s=12, b=3, h=4, d=32,
        )  # fmt: skip
        yield pytest.param(case, fused, id=f"{'fused' * fused or 'unfused'}-{case.name}-{angles}")


@pytest.mark.parametrize(("case", "fused"), [*grid()])
def test_the_reference_is_transformer_engines(apply_rotary_pos_emb, case, fused):
    assert first_wrong(apply_rotary_pos_emb, case, "cuda", fused=fused) is None
