"""The numeric rule: how far a result may be from the oracle, in units of eager's own error.

With eager's rms error 1e-3 and largest error 4e-3, and a slack of 2: the rms error of a solution is
at most 2e-3, and no element is off by more than 1.6e-2 or one ulp, if that is more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

FEW_ELEMENTS = 1000
"""On fewer elements an rms error says little, and eager may be lucky."""


@dataclass(frozen=True)
class Budget:
    """Eager's own error on one result."""

    rms: float | None
    """None on a tensor of fewer than FEW_ELEMENTS."""
    largest: float
    """The largest error of any element."""
    slices: torch.Tensor | None = None
    """The largest error of each slice along the first dimension, where each is judged by itself."""


def budget_of(eager: torch.Tensor, truth: torch.Tensor, apart: bool = False) -> Budget:
    """Return eager's error; with `apart`, of each slice along the first dimension too."""
    if not truth.numel():
        return Budget(None, 0.0)
    error = _error(eager, truth)
    rms = _rms(error) if truth.numel() >= FEW_ELEMENTS else None
    slices = error.amax(tuple(range(1, error.dim())), keepdim=True) if apart else None
    return Budget(rms, error.max().item(), slices)


def larger(one: Budget, other: Budget) -> Budget:
    """Return the first budget, with the larger of the two largest errors."""
    slices = one.slices
    if slices is not None and other.slices is not None:
        slices = torch.maximum(slices, other.slices)
    return Budget(one.rms, max(one.largest, other.largest), slices)


def _error(actual: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    return actual.double().sub_(truth).abs_()


def _rms(error: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(error)) / math.sqrt(error.numel())


@dataclass(frozen=True)
class Wrong:
    """The first wrong element of a result, and the expected and actual value in words."""

    index: tuple[int, ...]
    text: str


def check_values(
    actual: torch.Tensor, truth: torch.Tensor, budget: Budget, slack: float
) -> tuple[Wrong | None, float | None]:
    """Apply the numeric rule to one result.

    The rms error is at most `slack` times eager's. Every element is within one ulp of its oracle
    value, or within `2 * slack` times eager's largest error (of its slice, where slices are judged
    by themselves). NaN and infinity never pass where the oracle has neither.

    Args:
        actual: The result.
        truth: The oracle's, in float64, of the same shape.
        budget: Eager's error.
        slack: How many times eager's rms error is allowed.

    Returns:
        The first wrong element, if any; and the error in units of eager's, None where eager alone
        is exact.
    """
    error = _error(actual, truth)
    worst = error.max().item()
    measured, eager = worst, budget.largest
    if budget.rms is not None:
        measured, eager = _rms(error), budget.rms
    ratio = 1.0 if measured == eager else measured / eager if eager else None
    # if the worst error is within the budget, each is: an ulp can only widen the bound
    if budget.slices is not None or not worst <= 2 * slack * budget.largest:
        largest = truth.new_tensor(budget.largest) if budget.slices is None else budget.slices
        allowed = torch.maximum(ulp(truth, actual.dtype), 2 * slack * largest)
        bad = ~(error <= allowed) & (actual.double() != truth)
        if bad.any():
            text = f"{int(bad.sum())} of {bad.numel()} wrong"
            return _wrong(first_index(bad), actual, truth, text), ratio
    if budget.rms is not None and not measured <= slack * eager:
        where = first_index(error == worst)
        text = f"rms error {measured:.3g}, eager's {eager:.3g}, {slack:g} times that allowed"
        return _wrong(where, actual, truth, text), ratio
    return None, ratio


def _wrong(index: tuple[int, ...], actual: torch.Tensor, truth: torch.Tensor, text: str) -> Wrong:
    expected, came = truth[index].item(), actual[index].item()
    return Wrong(index, f"expected {expected:.8g}, got {came:.8g} ({text})")


def ulp(truth: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the distance from each oracle value to the next number of the dtype."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(truth.abs().clamp_min(info.smallest_normal))
    return torch.ldexp(torch.full_like(truth, info.eps), exponent - 1)


def first_index(mask: torch.Tensor) -> tuple[int, ...]:
    """Return the index of the first true element."""
    return tuple(int(i) for i in torch.unravel_index(mask.flatten().int().argmax(), mask.shape))
