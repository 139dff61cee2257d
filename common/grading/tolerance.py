"""The numeric rule: the allowed error of a result, as a multiple of eager's error.

For example, if eager's rms error is 1e-3, its largest error 4e-3 and the slack 2, the rms error of
a solution may be 2e-3, and the error of each element 1.6e-2, or one ulp if that is larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

CHUNK = 1 << 22
"""The number of elements that are compared at once: 32 MB in float64."""
FEW_ELEMENTS = 1000
"""The fewest elements for which the rms error is used; on fewer, eager's may be small by luck."""
USUAL = 0.75
"""The quantile of eager's relative errors that is taken as its usual error."""


@dataclass(frozen=True)
class Budget:
    """Eager's error on one result: of the whole tensor, or of each slice along a dimension.

    Eager's error in a slice or in a draw may be small by luck: a tenth of an ulp where another
    order of the same sum is off by one ulp. The bound of a slice is therefore at least eager's
    usual error relative to the slice's largest value. For example, if three in four relative errors
    are below 1e-7, a slice with the largest value 3,000 has a bound of at least 3e-4. A tensor of
    fewer than FEW_ELEMENTS is one slice.
    """

    rms: float | None
    """The rms error; None on a tensor of fewer than FEW_ELEMENTS."""
    largest: torch.Tensor
    """The largest error of any element in any draw, `[]`, or of each slice, `[slices, 1, ...]`."""
    magnitude: torch.Tensor | None = None
    """The largest absolute oracle value in each slice, `[slices, 1, ...]`."""
    relative: torch.Tensor | None = None
    """For each slice of each draw, the largest error divided by the magnitude, `[n]`."""

    @cached_property
    def bounds(self) -> torch.Tensor:
        """The bounds on eager's error, in the shape of `largest`."""
        if self.magnitude is None or self.relative is None or not self.relative.numel():
            return self.largest
        usual = self.relative.quantile(USUAL, interpolation="lower")
        return torch.maximum(self.largest, usual * self.magnitude)


def budget_of(
    eager: torch.Tensor,
    truth: torch.Tensor,
    apart: bool = False,
    device: torch.device | str | None = None,
) -> Budget:
    """Return the error of eager's result against the oracle's, which is in float64.

    With `apart`, each slice along the first dimension has its own error and bound. The results are
    compared on the device, by default that of `truth`.
    """
    few = truth.numel() < FEW_ELEMENTS
    if not truth.numel():
        return Budget(None, torch.tensor(0.0))
    rms, largest = _errors(eager, truth, device or truth.device)
    if not (few or apart):
        return Budget(rms, torch.tensor(largest, dtype=torch.float64))
    dims = tuple(range(int(apart), truth.dim()))
    in_slices = _error(eager.to(truth.device), truth).amax(dims, keepdim=True)
    magnitude = truth.abs().amax(dims, keepdim=True)
    relative = (in_slices / magnitude).flatten()
    return Budget(None if few else rms, in_slices, magnitude, relative[relative.isfinite()])


def larger(one: Budget, other: Budget) -> Budget:
    """Return the first budget with the larger largest error, and with both budgets' draws."""
    device, relative = one.largest.device, one.relative
    if relative is not None and other.relative is not None:
        relative = torch.cat([relative, other.relative.to(device)])
    largest = torch.maximum(one.largest, other.largest.to(device))
    return replace(one, largest=largest, relative=relative)


def _error(actual: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    return actual.double().sub_(truth).abs_()


def _errors(
    actual: torch.Tensor, truth: torch.Tensor, device: torch.device | str
) -> tuple[float, float]:
    """Return the rms error and the largest error; both are NaN if any error is NaN.

    A chunk at a time is copied to the device and compared there: a GPU whose memory is scarce
    holds neither tensor.
    """
    norms, worst = [], []
    chunks = (tensor.reshape(-1).split(CHUNK) for tensor in (actual, truth))
    for values, expected in zip(*chunks, strict=True):
        error = _error(values.to(device), expected.to(device))
        norms.append(torch.linalg.vector_norm(error))
        worst.append(error.max())
    norm = torch.linalg.vector_norm(torch.stack(norms))
    return float(norm) / math.sqrt(truth.numel()), float(torch.stack(worst).max())


@dataclass(frozen=True)
class Wrong:
    """The first wrong element of a result, with its expected, allowed and actual value in words."""

    index: tuple[int, ...]
    text: str
    expected: float
    got: float
    mask: torch.Tensor | None = field(default=None, compare=False, repr=False)
    """The elements beyond their bound, bool; None if only the rms error is too large."""


def check_values(
    actual: torch.Tensor,
    truth: torch.Tensor,
    budget: Budget,
    slack: float,
    device: torch.device | str | None = None,
) -> tuple[Wrong | None, float | None]:
    """Apply the numeric rule to one result.

    The rms error is at most `slack` times eager's. Every element is within one ulp of its oracle
    value, or within `2 * slack` times eager's largest error (in its slice, if slices have their own
    bounds). NaN and infinity never pass where the oracle's value is finite. The result is compared
    with the oracle's, in float64, on the device, by default that of `truth`.

    Returns:
        The first wrong element, if any; and the error as a multiple of eager's error, None if
        eager is exact and the result is not.
    """
    device = device or truth.device
    rms, worst = _errors(actual, truth, device)
    measured, eager = worst, float(budget.largest.max())
    if budget.rms is not None:
        measured, eager = rms, budget.rms
    ratio = 1.0 if measured == eager else measured / eager if eager else None
    rms_is_right = budget.rms is None or measured <= slack * eager
    # if the worst error is within the budget, all errors are: an ulp can only widen a bound
    if rms_is_right and worst <= 2 * slack * float(budget.bounds.min()):
        return None, ratio
    bounds = budget.bounds.to(truth.device).expand_as(truth)

    def is_beyond(expected: torch.Tensor, value: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
        within = _error(value, expected) <= allowed(expected, actual.dtype, eager, slack)
        return ~within & (value.double() != expected)

    mask = _mask(is_beyond, device, truth, actual, bounds)
    if count := int(mask.sum()):
        where, text = first_index(mask), f"{count} of {truth.numel()} wrong"
        bound = f" ± {float(allowed(truth[where], actual.dtype, bounds[where], slack)):.2g}"
    elif rms_is_right:
        return None, ratio
    else:
        is_worst = _mask(
            lambda value, expected: _error(value, expected) == worst, device, actual, truth
        )
        where, bound = first_index(is_worst), ""
        text = f"rms error {measured:.3g}, {slack * eager:.3g} allowed: {slack:g} times eager's"
    expected, got = truth[where].item(), actual[where].item()
    values = f"expected {expected:.8g}{bound}, got {got:.8g} ({text})"
    return Wrong(where, values, expected, got, mask if count else None), ratio


def _mask(
    select: Callable[..., torch.Tensor], device: torch.device | str, *tensors: torch.Tensor
) -> torch.Tensor:
    """Return what `select` says of each element, a chunk at a time on the device; see `_errors`."""
    chunks = zip(*(tensor.reshape(-1).split(CHUNK) for tensor in tensors), strict=True)
    masks = [select(*(part.to(device) for part in each)).to(tensors[0].device) for each in chunks]
    return torch.cat(masks).view(tensors[0].shape)


def allowed(
    truth: torch.Tensor, dtype: torch.dtype, largest: torch.Tensor, slack: float
) -> torch.Tensor:
    """Return the allowed error of each element, if eager's largest error is `largest`."""
    return torch.maximum(ulp(truth, dtype), 2 * slack * largest)


def ulp(truth: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the distance from each oracle value to the next number of the dtype."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(truth.abs().clamp_min(info.smallest_normal))
    return torch.ldexp(torch.full_like(truth, info.eps), exponent - 1)


def first_index(mask: torch.Tensor) -> tuple[int, ...]:
    """Return the index of the first true element."""
    flat = mask.flatten().view(torch.uint8).argmax()
    return tuple(int(i) for i in torch.unravel_index(flat, mask.shape))
