"""One solution, one case -> its verdict in each direction.

A solution's process answers twice (`exchange.py`); what it left is held against a problem with its
truth (`problem.py`), by the numeric rule (`tolerance.py`). The truth never leaves this process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from common.exchange import POISONS, Exchange
from common.problem import OUTPUT, Problem
from common.spec import DIRECTIONS, Direction
from common.tolerance import check_values, first_index
from common.worker import Died, Reply, Worker

# The earliest cause wins; the first two are no failures.
VERDICTS = (
    "PASSED",
    "UNSUPPORTED",
    "COMPILE_ERROR",
    "RUNTIME_ERROR",
    "CRASHED",
    "TIMEOUT",
    "TAMPERED",
    "IMPOSSIBLE_SPEED",
    "OUT_OF_BOUNDS",
    "MUTATED_INPUT",
    "UNWRITTEN_OUTPUT",
    "INCORRECT_SHAPE",
    "INCORRECT_DTYPE",
    "INCORRECT_NUMERICAL",
    "NONDETERMINISTIC",
)
FINE = ("PASSED", "UNSUPPORTED")


@dataclass(frozen=True)
class Verdict:
    """What one solution got for one direction of one case."""

    solution: str
    op: str
    case: str
    direction: Direction
    verdict: str
    reason: str = ""
    error: float | None = None
    """The solution's error in units of eager's own: rms, or the largest on small tensors."""

    @property
    def fine(self) -> bool:
        return self.verdict in FINE


Finding = tuple[str, str]
"""A verdict and its reason."""

# --- grading --------------------------------------------------------------------------------------


def grade(problem: Problem, worker: Worker) -> dict[Direction, Verdict]:
    """Have the worker answer twice and judge each direction by the earliest cause in VERDICTS."""
    exchange = Exchange(problem, worker)
    findings: dict[Direction, list[Finding]] = {"forward": [], "backward": []}
    errors: dict[Direction, float | None] = {"forward": None, "backward": None}
    for attempt in range(len(POISONS)):
        _attempt(exchange, attempt, findings)
        if exchange.answered["forward"] <= attempt:
            break
    for direction, names in _results(problem).items():
        once = 0 < exchange.answered[direction] < len(POISONS)
        if once and {verdict for verdict, _ in findings[direction]} == {"UNSUPPORTED"}:
            findings[direction].append(("NONDETERMINISTIC", "unsupported in one run of two"))
        if exchange.answered[direction] == len(POISONS):
            for name in names:
                found, error = _compare(problem, name, exchange.results(name))
                findings[direction] += found
                known = [e for e in (errors[direction], error) if e is not None]
                errors[direction] = max(known, default=None)
    return {
        direction: _verdict(problem, worker, direction, findings[direction], errors[direction])
        for direction in DIRECTIONS
    }


def _results(problem: Problem) -> dict[Direction, list[str]]:
    return {"forward": [OUTPUT], "backward": list(problem.op.differentiable)}


def _verdict(
    problem: Problem,
    worker: Worker,
    direction: Direction,
    findings: list[Finding],
    error: float | None,
) -> Verdict:
    """The earliest cause; a failure comes before what is unsupported."""
    findings = findings or [("PASSED", "")]
    verdict, reason = min(findings, key=lambda found: (found[0] in FINE, VERDICTS.index(found[0])))
    return Verdict(
        solution=worker.solution.name,
        op=problem.op.name,
        case=problem.case.name,
        direction=direction,
        verdict=verdict,
        reason=reason,
        error=error if verdict == "PASSED" else None,
    )


def _attempt(exchange: Exchange, attempt: int, findings: dict[Direction, list[Finding]]) -> None:
    """One forward and one backward, with whatever is found wrong at once."""
    exchange.lay_inputs()
    reply = _asked(exchange.forward, attempt)
    failure = _failure(reply, {OUTPUT: reply}, exchange)
    if failure:
        findings["forward"].append(failure)
    if reply.get("verdict"):
        findings["backward"].append((reply["verdict"], reply["reason"]))
        return
    if not reply.get("differentiable"):
        findings["backward"].append(("UNSUPPORTED", "the output has no grad_fn"))
        return
    if failure and failure[0] in ("INCORRECT_SHAPE", "INCORRECT_DTYPE"):
        findings["backward"].append(failure)
        return
    reply = _asked(exchange.backward, attempt)
    failure = _failure(reply, reply, exchange)
    if failure:
        findings["backward"].append(failure)


def _asked(request: Callable[[int], Reply], attempt: int) -> Reply:
    """The reply, or what became of the process; a reply of another form is no reply."""
    try:
        reply = request(attempt)
    except Died as death:
        return {"verdict": death.verdict, "reason": death.reason}
    if "verdict" in reply:
        well_formed = reply["verdict"] in VERDICTS and "reason" in reply
    else:
        results = [reply] if "shape" in reply else reply.values()
        well_formed = bool(reply) and all(map(_is_result, results))
    if well_formed:
        return reply
    return {"verdict": "CRASHED", "reason": "the process wrote what is no reply"}


def _is_result(result: Any) -> bool:
    return result is None or (
        isinstance(result, dict)
        and isinstance(result.get("shape"), list)
        and isinstance(result.get("dtype"), str)
    )


def _failure(reply: Reply, results: dict[str, Reply | None], exchange: Exchange) -> Finding | None:
    """What a reply, the shapes it reports and the arguments left behind say by themselves."""
    if reply.get("verdict"):
        return reply["verdict"], reply["reason"]
    if changed := exchange.changed():
        return "MUTATED_INPUT", f"{changed} changed"
    for name, result in results.items():
        label = _label(name)
        if result is None:
            return "INCORRECT_NUMERICAL", f"{label} is None"
        wanted = exchange.slots[f"{name} 0"]
        if tuple(result["shape"]) != wanted.size:
            shape, size = result["shape"], list(wanted.size)
            return "INCORRECT_SHAPE", f"{label} has shape {shape}, expected {size}"
        if result["dtype"] != wanted.dtype:
            return "INCORRECT_DTYPE", f"{label} is {result['dtype']}, expected {wanted.dtype}"
    return None


def _label(name: str) -> str:
    return OUTPUT if name == OUTPUT else f"the gradient of {name}"


def _compare(
    problem: Problem, name: str, attempts: list[torch.Tensor]
) -> tuple[list[Finding], float | None]:
    """What the values of one result are guilty of, and its error in units of eager's."""
    first, second = attempts
    truth, budget = problem.truth[name], problem.budgets[name]
    if not truth.numel():
        return [], None
    findings = []
    unwritten = first.isnan() & ~second.isnan() & ~truth.isnan()
    if unwritten.any():
        where = first_index(unwritten)
        count = f"{int(unwritten.sum())} of {truth.numel()} elements"
        reason = f"{_at(name, where)} holds fresh memory, as do {count} in all"
        findings.append(("UNWRITTEN_OUTPUT", reason))
    wrong, ratio = check_values(first, truth, budget, problem.slack)
    if wrong:
        findings.append(("INCORRECT_NUMERICAL", f"{_at(name, wrong.index)}: {wrong.text}"))
    differs = _bits(first) != _bits(second)
    if differs.any():
        where = first_index(differs)
        values = f"{first[where].item():.8g}, then {second[where].item():.8g}"
        reason = f"{_at(name, where)} was {values} on the same inputs"
        findings.append(("NONDETERMINISTIC", reason))
    return findings, ratio


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({2: torch.int16, 4: torch.int32}[tensor.element_size()])


def _at(name: str, index: tuple[int, ...]) -> str:
    return f"{_label(name)} at {list(index)}"
