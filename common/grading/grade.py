"""The verdict of one solution on one case, in each direction.

`grade` has the solution's process asked (`asking.py`), collects findings from its replies, from the
shared memory and from the values (`compare.py`), and takes the earliest cause for the verdict. The
oracle's results never leave the harness's process.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from common.grading import asking
from common.grading.asking import Findings
from common.grading.compare import Finding, compare, differing, wrong_values
from common.grading.exchange import FIRST, FURTHER, LATEST, OTHER, Exchange
from common.grading.problem import Problem
from common.grading.programs import with_programs
from common.grading.worker import Worker
from common.spec import DIRECTIONS, Direction
from common.verdicts import FINE, VERDICTS, Verdict

ORDER = list(VERDICTS)
LONGEST_REPEATS = 5.0
"""Seconds after which a case is not answered again; calls of 20 ms and less reach all repeats."""
FEW = 1 << 14
"""The most elements of a direction's results that are kept with its verdict."""
SAME = "the same inputs, of calls that live at the same time"


@dataclass
class Outcome:
    """The comparisons of one direction's results with the oracle's."""

    compared: int = 0
    """The results that were compared: without any there is nothing that could pass."""
    error: float | None = None
    """The largest error in units of eager's own."""


def grade(
    problem: Problem, worker: Worker, repeats: int = 0, keep: bool = False
) -> dict[Direction, Verdict]:
    """Return the verdicts of the worker's solution on a problem.

    The solution answers twice, in some cases once more on other inputs or in a further mode; where
    nothing is wrong after that, it answers up to `repeats` times more. With `keep`, a verdict of
    wrong values has them with it, if they are few.
    """
    exchange = Exchange(problem, worker)
    findings: Findings = {"forward": [], "backward": []}
    asked = asking.ask_attempts(exchange, findings)
    graded = [direction for direction in DIRECTIONS if exchange.names(direction)]
    outcomes = {each: _compare(exchange, each, asked, findings[each]) for each in graded}
    if not any(findings.values()):
        asking.note_second_backward(exchange, findings)
    asking.ask_further(exchange, findings)
    for direction in graded:
        _compare_further(exchange, direction, findings[direction])
    if repeats:  # the second backward, which decides nothing, may have changed the inputs
        exchange.lay_inputs(LATEST)
    start = time.monotonic()
    for _ in range(repeats):
        asking.repeat(exchange, findings)
        if time.monotonic() - start > LONGEST_REPEATS:
            break
    return {
        direction: _verdict(
            exchange,
            direction,
            findings[direction],
            outcomes[direction],
            _kept(exchange, direction) if keep and findings[direction] else {},
        )
        for direction in graded
    }


# --- values ---------------------------------------------------------------------------------------


def _compare(
    exchange: Exchange, direction: Direction, asked: Collection[int], findings: list[Finding]
) -> Outcome:
    """Compare the results, if every attempt has them, and add what is found."""
    answered, outcome = exchange.answered[direction], Outcome()
    if not answered.issuperset(asked):
        if answered - {FURTHER} and {found.verdict for found in findings} == {"UNSUPPORTED"}:
            findings.append(Finding("NONDETERMINISTIC", "unsupported in one run of two"))
        return outcome
    errors = []
    for name in exchange.names(direction):
        attempts = [each for each in (FIRST, LATEST, OTHER) if each in asked]
        found, error = compare(exchange.problem, name, *map(exchange.result, [name] * 3, attempts))
        findings += found or _differing_beside(exchange, name, asked)
        errors.append(error)
    outcome.compared = len(errors)
    outcome.error = max((error for error in errors if error is not None), default=None)
    return outcome


def _differing_beside(exchange: Exchange, name: str, asked: Collection[int]) -> list[Finding]:
    """Compare the results of the calls beside the latest with its own."""
    latest = exchange.result(name, LATEST)
    several = (exchange.result(name, each) for each in exchange.beside if each in asked)
    found = (differing(name, latest, beside, SAME) for beside in several)
    return next(filter(None, found), [])


def _compare_further(exchange: Exchange, direction: Direction, findings: list[Finding]) -> None:
    """Compare the results of the further mode, if nothing else is wrong with this direction."""
    if findings or exchange.mode is None or FURTHER not in exchange.answered[direction]:
        return
    for name in exchange.names(direction, FURTHER):
        result = exchange.result(name, FURTHER)
        findings += wrong_values(exchange.problem, name, result, exchange.mode.text)


def _kept(exchange: Exchange, direction: Direction) -> dict[str, torch.Tensor]:
    """Return the first call's results in host memory, if there are any and they are small."""
    names, shapes = exchange.names(direction), exchange.problem.shapes
    count = sum(shapes[name].numel() for name in names)
    if FIRST not in exchange.answered[direction] or count > FEW:
        return {}
    return {name: exchange.result(name, FIRST).cpu() for name in names}


# --- the verdict ----------------------------------------------------------------------------------


def _verdict(
    exchange: Exchange,
    direction: Direction,
    findings: list[Finding],
    outcome: Outcome,
    results: Mapping[str, torch.Tensor],
) -> Verdict:
    """Return the earliest cause as the verdict; a failure comes before `UNSUPPORTED`.

    Only compared results pass, whatever the replies said.
    """
    nothing = Finding("CRASHED", "no result was compared")
    without = Finding("PASSED", "") if outcome.compared else nothing
    found = min(
        findings or [without],
        key=lambda found: (found.verdict in FINE, ORDER.index(found.verdict)),
    )
    passed = found.verdict == "PASSED"
    return Verdict(
        solution=exchange.worker.solution.name,
        op=exchange.problem.op.name,
        case=exchange.problem.case.name,
        direction=direction,
        verdict=found.verdict,
        reason=with_programs(exchange, direction, found.verdict, found.reason, found.kind),
        error=outcome.error if passed else None,
        notes=tuple(exchange.notes) if passed else (),
        picture=found.picture,
        kind=found.kind,
        results=results if found.verdict == "INCORRECT_NUMERICAL" else {},
    )
