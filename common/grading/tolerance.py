"""The numeric rule: how far a result may be from the oracle, in units of eager's own error.

With eager's rms error 1e-3 and largest error 4e-3, and a slack of 2: the rms error of a solution is
at most 2e-3, and no element is off by more than 1.6e-2 or one ulp, if that is more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch

CHUNK = 1 << 22
"""The elements of a chunk in which large tensors are compared: 32 MB in float64."""
FEW_ELEMENTS = 1000
"""On fewer elements an rms error says little, and eager may be lucky."""
USUAL = 0.75
"""The quantile of eager's relative errors that is its usual one."""


@dataclass(frozen=True)
class Slices:
    """Eager's errors on the slices of a small result, or of one whose slices differ in magnitude.

    Eager may be lucky in a slice, or in a draw: off by a tenth of an ulp where another order of the
    same sum is off by one. The bound is therefore at least eager's usual error, in units of the
    slice's largest value. Example: three errors of four are below 1e-7 of the slice's largest
    value, so a slice whose largest is 3,000 may err as if eager had erred by 3e-4.
    """

    largest: torch.Tensor
    """The largest error of any element of each slice, in any draw, `[slices, 1, ...]`."""
    magnitude: torch.Tensor
    """The largest of the oracle's values in each slice, of the same shape."""
    relative: torch.Tensor
    """The largest error in units of the magnitude, of each slice of each draw, `[n]`."""

    @cached_property
    def bounds(self) -> torch.Tensor:
        """Return the error that each slice is judged by, `[slices, 1, ...]`."""
        if not self.relative.numel():
            return self.largest
        usual = self.relative.quantile(USUAL, interpolation="lower")
        return torch.maximum(self.largest, usual * self.magnitude)

    def with_draw(self, other: Slices) -> Slices:
        """Return these slices, with the errors of another draw of the same case."""
        largest = torch.maximum(self.largest, other.largest)
        return Slices(largest, self.magnitude, torch.cat([self.relative, other.relative]))


@dataclass(frozen=True)
class Budget:
    """Eager's own error on one result."""

    rms: float | None
    """None on a tensor of fewer than FEW_ELEMENTS."""
    largest: float
    """The largest error of any element."""
    slices: Slices | None = None
    """The errors by slice, where each is judged by itself; one slice of a small tensor."""

    @cached_property
    def least(self) -> float:
        """The error that no slice is judged by less than."""
        return self.largest if self.slices is None else float(self.slices.bounds.min())


def budget_of(
    eager: torch.Tensor,
    truth: torch.Tensor,
    apart: bool = False,
    device: torch.device | str | None = None,
) -> Budget:
    """Return eager's error; with `apart`, of each slice along the first dimension too.

    Args:
        eager: Eager's result.
        truth: The oracle's, in float64, of the same shape.
        apart: Whether each slice is judged by itself.
        device: The device to compare on, the oracle's by default.
    """
    if not truth.numel():
        return Budget(None, 0.0)
    rms, largest = _errors(eager, truth, device or truth.device)
    few = truth.numel() < FEW_ELEMENTS
    slices = _slices(eager, truth, apart) if few or apart else None
    return Budget(None if few else rms, largest, slices)


def _slices(eager: torch.Tensor, truth: torch.Tensor, apart: bool) -> Slices:
    dims = tuple(range(int(apart), truth.dim()))
    largest = _error(eager.to(truth.device), truth).amax(dims, keepdim=True)
    magnitude = truth.abs().amax(dims, keepdim=True)
    relative = (largest / magnitude).flatten()
    return Slices(largest, magnitude, relative[relative.isfinite()])


def larger(one: Budget, other: Budget) -> Budget:
    """Return the first budget, with the larger of the two largest errors."""
    slices = one.slices
    if slices is not None and other.slices is not None:
        slices = slices.with_draw(other.slices)
    return Budget(one.rms, max(one.largest, other.largest), slices)


def _error(actual: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    return actual.double().sub_(truth).abs_()


def _errors(
    actual: torch.Tensor, truth: torch.Tensor, device: torch.device | str
) -> tuple[float, float]:
    """Return the rms error and the largest; NaN where any error is."""
    norms, worst = [], []
    for _, (ours, right) in chunks(device, actual, truth):
        error = _error(ours, right)
        norms.append(torch.linalg.vector_norm(error))
        worst.append(error.max())
    norm = torch.linalg.vector_norm(torch.stack(norms))
    return float(norm) / math.sqrt(truth.numel()), float(torch.stack(worst).max())


def chunks(
    device: torch.device | str, *tensors: torch.Tensor
) -> Iterator[tuple[int, list[torch.Tensor]]]:
    """Yield tensors of one shape chunk by chunk, flat and on the device.

    Results and truths lie in host memory where a GPU's is scarce.

    Yields:
        The index of the chunk's first element among all, and the chunk of each tensor, `[n]`.
    """
    flat = [tensor.reshape(-1) for tensor in tensors]
    for start in range(0, len(flat[0]), CHUNK):
        yield start, [each[start : start + CHUNK].to(device) for each in flat]


@dataclass(frozen=True)
class Wrong:
    """The first wrong element of a result; the expected, allowed and actual value in words."""

    index: tuple[int, ...]
    text: str
    mask: torch.Tensor | None = field(default=None, compare=False, repr=False)
    """The elements beyond their bound, bool, where the truth lies; None if the rms error is."""


def check_values(
    actual: torch.Tensor,
    truth: torch.Tensor,
    budget: Budget,
    slack: float,
    device: torch.device | str | None = None,
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
        device: The device to compare on, the oracle's by default.

    Returns:
        The first wrong element, if any; and the error in units of eager's, None where eager alone
        is exact.
    """
    device = device or truth.device
    rms, worst = _errors(actual, truth, device)
    measured, eager = worst, budget.largest
    if budget.rms is not None:
        measured, eager = rms, budget.rms
    ratio = 1.0 if measured == eager else measured / eager if eager else None
    # if the worst error is within the budget, each is: an ulp can only widen the bound
    if not worst <= 2 * slack * budget.least:
        mask = _beyond(actual, truth, budget, slack, device)
        if count := int(mask.sum()):
            text = f"{count} of {truth.numel()} wrong"
            largest = truth.new_tensor(budget.largest)
            where, largest = first_index(mask), truth.new_tensor(budget.largest)
            if budget.slices is not None:
                largest = budget.slices.bounds.expand_as(truth)[where]
            bound = float(allowed(truth[where], actual.dtype, largest, slack))
            return _wrong(where, actual, truth, text, f" ± {bound:.2g}", mask), ratio
    if budget.rms is not None and not measured <= slack * eager:
        where = _place_of(worst, actual, truth, device)
        text = f"rms error {measured:.3g}, {slack * eager:.3g} allowed: {slack:g} times eager's"
        return _wrong(where, actual, truth, text), ratio
    return None, ratio


def _beyond(
    actual: torch.Tensor,
    truth: torch.Tensor,
    budget: Budget,
    slack: float,
    device: torch.device | str,
) -> torch.Tensor:
    """Return the elements beyond their bound, bool, where the truth lies."""
    apart = [] if budget.slices is None else [budget.slices.bounds.expand_as(truth)]
    mask = torch.empty(truth.numel(), dtype=torch.bool, device=truth.device)
    for start, (ours, right, *slices) in chunks(device, actual, truth, *apart):
        largest = slices[0] if slices else right.new_tensor(budget.largest)
        bad = ~(_error(ours, right) <= allowed(right, actual.dtype, largest, slack))
        bad &= ours.double() != right
        mask[start : start + len(bad)] = bad
    return mask.view(truth.shape)


def allowed(
    truth: torch.Tensor, dtype: torch.dtype, largest: torch.Tensor, slack: float
) -> torch.Tensor:
    """Return the error that each element may have, where eager's largest is `largest`."""
    return torch.maximum(ulp(truth, dtype), 2 * slack * largest)


def _place_of(
    worst: float, actual: torch.Tensor, truth: torch.Tensor, device: torch.device | str
) -> tuple[int, ...]:
    """Return the index of the first element with the worst error."""
    flat = 0
    for start, (ours, right) in chunks(device, actual, truth):
        if (here := _error(ours, right) == worst).any():
            flat = start + int(here.int().argmax())
            break
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), truth.shape))


def _wrong(
    index: tuple[int, ...],
    actual: torch.Tensor,
    truth: torch.Tensor,
    text: str,
    bound: str = "",
    mask: torch.Tensor | None = None,
) -> Wrong:
    """Return the wrong element; `bound` follows the expected value, where it has one."""
    expected, came = truth[index].item(), actual[index].item()
    return Wrong(index, f"expected {expected:.8g}{bound}, got {came:.8g} ({text})", mask)


def ulp(truth: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the distance from each oracle value to the next number of the dtype."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(truth.abs().clamp_min(info.smallest_normal))
    return torch.ldexp(torch.full_like(truth, info.eps), exponent - 1)


def first_index(mask: torch.Tensor) -> tuple[int, ...]:
    """Return the index of the first true element."""
    return tuple(
        int(i) for i in torch.unravel_index(mask.flatten().view(torch.uint8).argmax(), mask.shape)
    )
