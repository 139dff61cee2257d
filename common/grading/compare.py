"""Findings from the values of one result: the two runs with each other, and with the oracle."""

from __future__ import annotations

from typing import NamedTuple

import torch

from common.grading.problem import OUTPUT, Problem
from common.grading.tolerance import check_values, first_index

FEW = 8
"""So few elements may by chance come out the same from other inputs."""


class Finding(NamedTuple):
    """A verdict that something speaks for, and its reason."""

    verdict: str
    reason: str


def compare(
    problem: Problem,
    name: str,
    first: torch.Tensor,
    second: torch.Tensor,
    again: torch.Tensor | None = None,
) -> tuple[list[Finding], float | None]:
    """Compare one result of two runs with each other and with the oracle.

    Args:
        problem: The problem with the oracle's results.
        name: The result: `output`, or the argument whose gradient it is.
        first: The result of the first run.
        second: The result of the second run, on the same inputs.
        again: The result of a run on `problem.other`, if there was one.

    Returns:
        The findings, and the error in units of eager's own, if both are known.
    """
    truth, budget = problem.truth[name], problem.budgets[name]
    if not truth.numel():
        return [], None
    same = "the same inputs" + (", the second beside another call" if again is not None else "")
    findings = differing(name, first, second, same)
    if findings:
        findings += _foreign(name, first, second, truth.to(first.device))
    wrong, ratio = check_values(first, truth, budget, problem.slack, problem.device)
    if wrong:
        findings.append(Finding("INCORRECT_NUMERICAL", f"{_at(name, wrong.index)}: {wrong.text}"))
    elif again is not None and _stayed(first, again, truth):
        reason = f"{label(name)} stayed what it was when the inputs changed"
        findings.append(Finding("TAMPERED", reason))
    elif again is not None and not findings:
        findings += wrong_values(problem.other, name, again, "of a call on other inputs")
    return findings, ratio


def wrong_values(problem: Problem, name: str, result: torch.Tensor, which: str) -> list[Finding]:
    """Return a finding if a result of a further call differs from the oracle's.

    Args:
        problem: The problem with the oracle's results.
        name: The result: `output`, or the argument whose gradient it is.
        result: The result.
        which: The call in words, for the reason.
    """
    if not result.numel():
        return []
    truth, budget = problem.truth[name], problem.budgets[name]
    wrong, _ = check_values(result, truth, budget, problem.slack, problem.device)
    if not wrong:
        return []
    return [Finding("INCORRECT_NUMERICAL", f"{_at(name, wrong.index)}, {which}: {wrong.text}")]


def altered(name: str, first: torch.Tensor, later: torch.Tensor) -> list[Finding]:
    """Return a finding if one call's result changed when another call was made beside it."""
    found = differing(name, first, later)
    reason = f"{label(name)} of one call changed when the next was made, as if both shared memory"
    return [Finding("INCORRECT_NUMERICAL", reason)] if found else []


def differing(
    name: str, first: torch.Tensor, second: torch.Tensor, same: str = "the same inputs"
) -> list[Finding]:
    """Return a finding if two results of the same inputs differ in any bit."""
    if torch.equal(_bits(first), _bits(second)):
        return []
    where = first_index(_bits(first) != _bits(second))
    values = f"{first[where].item():.8g}, then {second[where].item():.8g}"
    return [Finding("NONDETERMINISTIC", f"{_at(name, where)} was {values} on {same}")]


def label(name: str) -> str:
    """Return the words for a result in a reason."""
    return OUTPUT if name == OUTPUT else f"the gradient of {name}"


def _foreign(
    name: str, first: torch.Tensor, second: torch.Tensor, truth: torch.Tensor
) -> list[Finding]:
    """Find elements that come from memory which holds NaN in one of the two runs.

    Fresh memory holds NaN in the first run (see `wire.POISONS`), guard bytes in the second.
    """
    appears, vanishes = first.isnan() & ~second.isnan(), second.isnan() & ~first.isnan()
    findings = []
    for verdict, mask, what in (
        ("UNWRITTEN_OUTPUT", appears, "holds fresh memory"),
        ("OUT_OF_BOUNDS", vanishes, "comes from memory outside of the arguments"),
    ):
        if (mask := mask & ~truth.isnan()).any():
            count = f"{int(mask.sum())} of {truth.numel()} elements"
            reason = f"{_at(name, first_index(mask))} {what}, as do {count} in all"
            findings.append(Finding(verdict, reason))
    return findings


def _stayed(first: torch.Tensor, again: torch.Tensor, truth: torch.Tensor) -> bool:
    """Return whether a result is the same on other inputs, though it should not be.

    Zeros may be: the gradient of weights that a mask leaves out.
    """
    return torch.equal(_bits(first), _bits(again)) and int(truth.count_nonzero()) >= FEW


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({2: torch.int16, 4: torch.int32}[tensor.element_size()])


def _at(name: str, index: tuple[int, ...]) -> str:
    return f"{label(name)} at {list(index)}"
