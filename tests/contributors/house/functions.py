"""The house's cosine and sine err by less than two units in the last place of float64's."""

import math

import pytest
import torch
import triton
import triton.language as tl
from trigonometry import cos_sin

BLOCK = 2**14


@triton.jit
def _both(angles, cos, sin, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    angle = tl.load(angles + index)
    c, s = cos_sin(angle, angle)
    tl.store(cos + index, c)
    tl.store(sin + index, s)


def random(low, high):
    """Return angles of both signs whose exponents are even from low to high."""
    exponent, side = torch.rand(2, BLOCK, dtype=torch.float64)
    return torch.exp2(low + (high - low) * exponent) * (side - 0.5).sign()


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("odd", [[], [torch.nan], [torch.inf, -torch.inf]])
@pytest.mark.parametrize(
    "draw",
    [
        lambda: random(-30, 0),
        lambda: random(0, 20),
        lambda: random(20, 127),  # libdevice serves here
        # as near to multiples of pi / 2 as float32 comes, where most digits cancel
        lambda: torch.arange(1, 1 + 37 * BLOCK, 37) * (math.pi / 2),
    ],
)
def test_cosine_and_sine_are_right_beside_one_that_there_is_not(draw, odd):
    angles = torch.cat((torch.tensor(odd), draw()[len(odd) :])).float()
    results = torch.empty_like(angles), torch.empty_like(angles)
    _both[(1,)](angles, *results, BLOCK)
    for got, truth in zip(results, (angles.double().cos(), angles.double().sin()), strict=True):
        unit = torch.exp2(truth.abs().log2().floor() - 23)
        assert ((got.double() - truth).abs() / unit)[len(odd) :].max() < 1.6
        assert got[: len(odd)].isnan().all()
