"""The house's cosine and sine of dense random angles, against float64."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from trigonometry import cos_sin

BLOCK = 2**14
RANGES = [(-30, 0), (0, 7), (7, 17), (17, 20), (20, 24), (20, 60), (60, 127)]
"""Exponents of 2: a million is just below 2**20, from where on libdevice serves."""
NEAR_ZERO = np.arange(1, 600_000, 37) * (np.pi / 2)
"""Angles as near to multiples of pi / 2 as float32 comes, where the rest has lost most digits."""


@triton.jit
def _both(angles, others, cos, sin, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c, s = cos_sin(tl.load(angles + index), tl.load(others + index))
    tl.store(cos + index, c)
    tl.store(sin + index, s)


def both(angles, others):
    """Return the cosines of angles and the sines of others [n], n a multiple of BLOCK."""
    cos, sin = torch.empty_like(angles), torch.empty_like(others)
    _both[(len(angles) // BLOCK,)](angles, others, cos, sin, BLOCK)
    return cos, sin


def units(got, truth):
    """Return the largest error in units of the last place of the truth."""
    unit = torch.exp2(truth.abs().log2().floor() - 23)
    return ((got.double() - truth).abs() / unit).max()


def random(low, high):
    """Return angles of both signs whose exponents are even from low to high."""
    generator = torch.Generator().manual_seed(0)
    exponent, side = torch.rand(2, 4 * BLOCK, generator=generator, dtype=torch.float64)
    return (torch.exp2(low + (high - low) * exponent) * (side - 0.5).sign()).float()


@pytest.mark.parametrize("limits", RANGES)
def test_random_angles(limits):
    angles = random(*limits)
    others = angles.flip(0)
    cos, sin = both(angles, others)
    assert units(cos, angles.double().cos()) < 1.6
    assert units(sin, others.double().sin()) < 1.6


def test_angles_whose_cosine_or_sine_is_near_zero():
    angles = torch.from_numpy(NEAR_ZERO).float()
    angles = angles.repeat(2)[:BLOCK]
    cos, sin = both(angles, angles)
    assert units(cos, angles.double().cos()) < 1.6
    assert units(sin, angles.double().sin()) < 1.6


@pytest.mark.filterwarnings("ignore:invalid value")
def test_infinities_and_nan_are_not_numbers_and_zeros_are_exact():
    angles = torch.zeros(BLOCK)
    cos, sin = both(angles, angles)
    assert (cos == 1).all() and (sin == 0).all()
    odd = torch.tensor([torch.inf, -torch.inf, torch.nan])
    for tensor in (odd, odd[2:]):  # with the first two a program leaves the polynomials
        angles[: len(tensor)] = tensor
        cos, sin = both(angles, angles)
        assert cos[: len(tensor)].isnan().all() and sin[: len(tensor)].isnan().all()
        assert (cos[len(tensor) :] == 1).all() and (sin[len(tensor) :] == 0).all()
        angles.zero_()
