"""One solution, one case -> its verdict in each direction.

A solution's process answers twice (`exchange.py`); what it left is held against a problem with its
truth (`problem.py`), by the numeric rule (`tolerance.py`). The truth never leaves this process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from common.grading.exchange import AGAIN, Exchange
from common.grading.problem import OUTPUT, Problem
from common.grading.tolerance import check_values, first_index
from common.grading.worker import Died, Worker
from common.spec import DIRECTIONS, Direction
from common.verdicts import FINE, VERDICTS, Verdict
from common.wire import Reply

# The earliest cause wins; the first two are no failures.
DEATHS = {"CRASHED", "TIMEOUT"}
LATEST = 1
"""The attempt that comes last."""
FEW = 8
"""Elements that may come out the same from other inputs."""


Finding = tuple[str, str]
"""A verdict and its reason."""

# --- grading --------------------------------------------------------------------------------------


def grade(problem: Problem, worker: Worker, repeats: int = 0) -> dict[Direction, Verdict]:
    """Have the worker answer twice, at times once more on other inputs, and where that is right so
    many times more; judge each direction by the earliest cause in VERDICTS."""
    exchange = Exchange(problem, worker)
    findings: dict[Direction, list[Finding]] = {"forward": [], "backward": []}
    errors: dict[Direction, float | None] = {"forward": None, "backward": None}
    asked = []
    for attempt in exchange.attempts:
        if attempt == AGAIN and DEATHS & {verdict for verdict, _ in findings["backward"]}:
            continue  # one more death in backward, and forward would not be asked any more
        asked.append(attempt)
        _attempt(exchange, attempt, findings)
        if attempt not in exchange.answered["forward"]:
            break
    for direction, names in _results(problem).items():
        answered = exchange.answered[direction]
        whole = answered.issuperset(asked)
        verdicts = {verdict for verdict, _ in findings[direction]}
        if answered and not whole and verdicts == {"UNSUPPORTED"}:
            findings[direction].append(("NONDETERMINISTIC", "unsupported in one run of two"))
        for name in names if whole else ():
            results = [exchange.result(name, attempt) for attempt in sorted(answered)]
            found, error = _compare(problem, name, *results)
            findings[direction] += found
            known = [e for e in (errors[direction], error) if e is not None]
            errors[direction] = max(known, default=None)
    for _ in range(repeats):
        _repeat(exchange, findings)
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
    verdict, reason = min(
        findings, key=lambda found: (found[0] in FINE, list(VERDICTS).index(found[0]))
    )
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
    exchange.lay_inputs(attempt)
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


def _repeat(exchange: Exchange, findings: dict[Direction, list[Finding]]) -> None:
    """The latest answer once more, in its own place, as long as nothing is wrong with any."""
    for direction in DIRECTIONS:
        if findings[direction]:
            return
        reply = _asked(getattr(exchange, direction), LATEST)
        results: dict[str, Reply | None] = {OUTPUT: reply} if direction == "forward" else reply
        if failure := _failure(reply, results, exchange):
            findings[direction].append(failure)
            return
        for name in _results(exchange.problem)[direction]:
            both = (exchange.result(name, attempt) for attempt in (0, LATEST))
            findings[direction] += _differing(name, *both)


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
    if overrun := exchange.overrun():
        return "OUT_OF_BOUNDS", overrun
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
    problem: Problem,
    name: str,
    first: torch.Tensor,
    second: torch.Tensor,
    again: torch.Tensor | None = None,
) -> tuple[list[Finding], float | None]:
    """What the values of one result are guilty of, and its error in units of eager's; `again` is
    the result on other inputs."""
    truth, budget = problem.truth[name], problem.budgets[name]
    if not truth.numel():
        return [], None
    findings = _differing(name, first, second)
    if findings:
        findings += _foreign(name, first, second, truth)
    wrong, ratio = check_values(first, truth, budget, problem.slack)
    if wrong:
        findings.append(("INCORRECT_NUMERICAL", f"{_at(name, wrong.index)}: {wrong.text}"))
    elif again is not None and _stayed(first, again, truth):
        findings.append(("TAMPERED", f"{_label(name)} stayed what it was when the inputs changed"))
    return findings, ratio


def _foreign(
    name: str, first: torch.Tensor, second: torch.Tensor, truth: torch.Tensor
) -> list[Finding]:
    """What was read where nothing was laid: it is NaN in one of two results."""
    appears, vanishes = first.isnan() & ~second.isnan(), second.isnan() & ~first.isnan()
    findings = []
    for verdict, mask, what in (
        ("UNWRITTEN_OUTPUT", appears, "holds fresh memory"),
        ("OUT_OF_BOUNDS", vanishes, "comes from memory outside of the arguments"),
    ):
        if (mask := mask & ~truth.isnan()).any():
            count = f"{int(mask.sum())} of {truth.numel()} elements"
            reason = f"{_at(name, first_index(mask))} {what}, as do {count} in all"
            findings.append((verdict, reason))
    return findings


def _differing(name: str, first: torch.Tensor, second: torch.Tensor) -> list[Finding]:
    """Two results of the same inputs are the same, bit for bit."""
    if torch.equal(_bits(first), _bits(second)):
        return []
    where = first_index(_bits(first) != _bits(second))
    values = f"{first[where].item():.8g}, then {second[where].item():.8g}"
    return [("NONDETERMINISTIC", f"{_at(name, where)} was {values} on the same inputs")]


def _stayed(first: torch.Tensor, again: torch.Tensor, truth: torch.Tensor) -> bool:
    """Zeros may: the gradient of what a mask leaves out."""
    return torch.equal(_bits(first), _bits(again)) and int(truth.count_nonzero()) >= FEW


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({2: torch.int16, 4: torch.int32}[tensor.element_size()])


def _at(name: str, index: tuple[int, ...]) -> str:
    return f"{_label(name)} at {list(index)}"
