"""Compare one result of a solution's two runs: with each other, and with the oracle.

The name of a result is `output`, or the argument whose gradient it is; see `spec.OUTPUT`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from common.arena import integers
from common.errors import Kind
from common.grading.call_plan import Attempt
from common.grading.mismatch import describe
from common.grading.problem import Problem
from common.grading.tolerance import check_values, first_index
from common.source import Place
from common.spec import is_output
from common.verdicts import Difference, Failure
from common.wire import POISONS, SECOND_RUN

MOST_RELATED = 1 << 20
"""The most differing elements for which `_relation` is computed, since it copies their values."""


class Finding(NamedTuple):
    """A verdict and its reason; of a direction, the first in the order of VERDICTS counts."""

    verdict: str
    reason: str
    kind: Kind = Kind.NONE
    attempt: Attempt | None = None
    """The call that fails, if one call fails by itself."""
    places: tuple[Place, ...] = ()
    """The places that the reason names."""
    difference: Difference | None = None
    """The wrong elements, if values are wrong or not written."""

    @classmethod
    def of(cls, failure: Failure, attempt: Attempt | None = None) -> Finding:
        """Return the finding of a failed request, which names a further call."""
        reason = failure.reason + (f", {attempt.text}" if attempt and attempt.further else "")
        return cls(failure.verdict, reason, failure.kind, attempt, failure.places)


def compare(
    problem: Problem, name: str, first: torch.Tensor, second: torch.Tensor
) -> tuple[list[Finding], float | None]:
    """Compare one result of two runs on the same inputs with each other and with the oracle.

    Returns:
        The findings, and the error as a multiple of eager's error, if both errors are known.
    """
    if findings := differing(problem, name, first, second):
        findings += _from_poison(problem, name, first, second)
    wrong, ratio = wrong_values(problem, name, first)
    return findings + wrong, ratio


def compare_other(
    other: Problem, name: str, first: torch.Tensor, again: torch.Tensor, call: str
) -> list[Finding]:
    """Compare a right result with that of a run on other inputs, which is `call` in words."""
    found = wrong_values(other, name, again, call)[0]
    # zeros may stay the same: for example, the gradient of weights that a mask leaves out
    must_differ = not other.unchanged and first.any()
    if found and must_differ and torch.equal(integers(first), integers(again)):
        return [Finding("TAMPERED", f"{label(name)} did not change when the inputs changed")]
    return found


def wrong_values(
    problem: Problem, name: str, result: torch.Tensor, call: str = ""
) -> tuple[list[Finding], float | None]:
    """Return a finding if the result is wrong, and its error as a multiple of eager's, if known.

    The finding has the set of wrong elements unless only the rms error is too large. `call` is a
    further call in words, for the reason.
    """
    if not result.numel():
        return [], None
    truth, budget, call = problem.truth[name], problem.budgets[name], f", {call}" * bool(call)
    wrong, ratio = check_values(result, truth, budget, problem.slack, problem.device)
    if wrong is None:
        return [], ratio
    at, elements, count = f"at {list(wrong.index)}", "", 0
    if wrong.mask is None:
        reason = f"{label(name)} {at}{call}: {wrong.text}"
    else:
        elements, count = describe(wrong.mask, problem.axes(name)), int(wrong.mask.sum())
        reason = f"{label(name)} wrong{call}: {elements}; {at} {wrong.text}"
    difference = Difference(name, elements, count, wrong.index, wrong.expected, wrong.got)
    return [Finding("INCORRECT_NUMERICAL", reason, difference=difference)], ratio


def differing(
    problem: Problem,
    name: str,
    first: torch.Tensor,
    second: torch.Tensor,
    inputs: str = "the same inputs",
) -> list[Finding]:
    """Return a finding if two results of the same inputs, which are in words, differ in any bit."""
    bits, others = integers(first), integers(second)
    if torch.equal(bits, others):
        return []
    mask = bits != others
    where = first_index(mask)
    values = f"{list(where)} was {first[where].item():.8g}, then {second[where].item():.8g}"
    if int(mask.sum()) <= MOST_RELATED:
        inputs += _relation(first[mask], second[mask])
    elements = f"{describe(mask, problem.axes(name))} ({int(mask.sum())} of {mask.numel()})"
    reason = f"{label(name)} changes: {elements}; {values} on {inputs}"
    return [Finding("NONDETERMINISTIC", reason)]


def _relation(first: torch.Tensor, second: torch.Tensor) -> str:
    """Return how the second result relates to the first, in words; "" if no relation is known."""
    if torch.equal(second, torch.full_like(second, POISONS[SECOND_RUN])):
        return ": the second time nothing is written there, it is fresh memory"
    if torch.equal(second, 2 * first):
        return ": each is twice as much the second time, as if it were added up"
    distances = (integers(first).long() - integers(second).long()).abs()
    return ": by the last bit alone" if int(distances.max()) == 1 else ""


def label(name: str) -> str:
    """Return the name of a result for a reason, such as "the gradient of x"."""
    return name if is_output(name) else f"the gradient of {name}"


def _from_poison(
    problem: Problem, name: str, first: torch.Tensor, second: torch.Tensor
) -> list[Finding]:
    """Return findings for the elements that are NaN in only one of the two runs.

    Fresh memory holds NaN only in the first run (see `wire.POISONS`), and guard bands hold NaN only
    in the second run (see `wire.GUARDS`).
    """
    fresh, outside = first.isnan() & ~second.isnan(), second.isnan() & ~first.isnan()
    truth, axes, findings = problem.truth[name].to(first.device), problem.axes(name), []
    for verdict, mask, fault in (
        ("UNWRITTEN_OUTPUT", fresh, "holds fresh memory"),
        ("OUT_OF_BOUNDS", outside, "comes from memory outside of the arguments"),
    ):
        if (mask := mask & ~truth.isnan()).any():
            count, elements, where = int(mask.sum()), describe(mask, axes), first_index(mask)
            reason = f"{label(name)} {fault}: {elements} ({count} of {truth.numel()})"
            values = truth[where].item(), first[where].item()
            difference = Difference(name, elements, count, where, *values)
            findings.append(Finding(verdict, reason, difference=difference))
    return findings
