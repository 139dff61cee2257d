"""The verdict of one solution on one case, in each direction.

`grade` has the solution's process answer (`exchange.py`), collects findings from its replies, from
the shared memory and from the values (`compare.py`), and takes the earliest cause for the verdict.
The oracle's results never leave the harness's process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from common.grading.compare import Finding, compare, differing, label
from common.grading.exchange import AGAIN, Exchange
from common.grading.problem import OUTPUT, Problem
from common.grading.worker import Worker
from common.spec import DIRECTIONS, Direction
from common.verdicts import FINE, VERDICTS, Verdict
from common.wire import Reply

DEATHS = {"CRASHED", "TIMEOUT"}
LATEST = 1
"""The attempt that is made last, and that further answers repeat."""
ORDER = list(VERDICTS)

Findings = dict[Direction, list[Finding]]


def grade(problem: Problem, worker: Worker, repeats: int = 0) -> dict[Direction, Verdict]:
    """Return the verdicts of the worker's solution on a problem.

    The solution answers twice and in some cases once more on other inputs; where nothing is wrong
    after that, it answers `repeats` times more.
    """
    exchange = Exchange(problem, worker)
    findings: Findings = {"forward": [], "backward": []}
    asked = _ask_attempts(exchange, findings)
    errors = {
        direction: _compare(exchange, direction, asked, findings[direction])
        for direction in DIRECTIONS
    }
    for _ in range(repeats):
        _repeat(exchange, findings)
    return {
        direction: _verdict(problem, worker, direction, findings[direction], errors[direction])
        for direction in DIRECTIONS
    }


# --- requests -------------------------------------------------------------------------------------


def _ask_attempts(exchange: Exchange, findings: Findings) -> list[int]:
    """Make the attempts, as long as forward answers; return those that were made."""
    asked = []
    for attempt in exchange.attempts:
        if attempt == AGAIN and DEATHS & {found.verdict for found in findings["backward"]}:
            continue  # one more death in backward, and forward would not be asked any more
        asked.append(attempt)
        _ask_attempt(exchange, attempt, findings)
        if attempt not in exchange.answered["forward"]:
            break
    return asked


def _ask_attempt(exchange: Exchange, attempt: int, findings: Findings) -> None:
    """Ask for one forward and, where its output allows that, one backward."""
    exchange.lay_inputs(attempt)
    reply, failure = _ask(exchange, "forward", attempt)
    if failure:
        findings["forward"].append(failure)
    if reply.get("verdict"):
        findings["backward"].append(Finding(reply["verdict"], reply["reason"]))
    elif not reply.get("differentiable"):
        findings["backward"].append(Finding("UNSUPPORTED", "the output has no grad_fn"))
    elif failure and failure.verdict in ("INCORRECT_SHAPE", "INCORRECT_DTYPE"):
        findings["backward"].append(failure)
    else:
        _, failure = _ask(exchange, "backward", attempt)
        if failure:
            findings["backward"].append(failure)


def _repeat(exchange: Exchange, findings: Findings) -> None:
    """Ask for the latest attempt once more, in its own place, if nothing is wrong so far."""
    for direction in DIRECTIONS:
        if findings[direction]:
            return
        _, failure = _ask(exchange, direction, LATEST)
        if failure:
            findings[direction].append(failure)
            return
        for name in _result_names(exchange.problem, direction):
            both = (exchange.result(name, attempt) for attempt in (0, LATEST))
            findings[direction] += differing(name, *both)


def _ask(exchange: Exchange, direction: Direction, attempt: int) -> tuple[Reply, Finding | None]:
    """Return the reply to one request, and the finding that it leads to before any comparison."""
    forward = direction == "forward"
    reply = exchange.forward(attempt) if forward else exchange.backward(attempt)
    results: dict[str, Reply | None] = {OUTPUT: reply} if forward else reply
    if not _is_reply(reply, results, _result_names(exchange.problem, direction)):
        reply = {"verdict": "CRASHED", "reason": "the process wrote what is no reply"}
    return reply, _failure(reply, results, exchange)


def _result_names(problem: Problem, direction: Direction) -> list[str]:
    return [OUTPUT] if direction == "forward" else list(problem.op.differentiable)


# --- findings -------------------------------------------------------------------------------------


def _is_reply(reply: Reply, results: dict[str, Reply | None], names: Iterable[str]) -> bool:
    """Return whether the reply is a failure in words, or describes each result that was asked for.

    Only a comparison can pass: a process that says `PASSED` of itself sent no reply.
    """
    if "verdict" in reply:
        failures = [verdict for verdict in VERDICTS if verdict != "PASSED"]
        return reply["verdict"] in failures and "reason" in reply
    return results.keys() == set(names) and all(map(_is_result, results.values()))


def _is_result(result: Any) -> bool:
    return result is None or (
        isinstance(result, dict)
        and isinstance(result.get("shape"), list)
        and isinstance(result.get("dtype"), str)
    )


def _failure(reply: Reply, results: dict[str, Reply | None], exchange: Exchange) -> Finding | None:
    """Return the first failure in the reply, the shared memory, or a result's shape and dtype."""
    if reply.get("verdict"):
        return Finding(reply["verdict"], reply["reason"])
    if overrun := exchange.overrun():
        return Finding("OUT_OF_BOUNDS", overrun)
    if changed := exchange.changed():
        return Finding("MUTATED_INPUT", f"{changed} changed")
    for name, result in results.items():
        if result is None:
            return Finding("INCORRECT_NUMERICAL", f"{label(name)} is None")
        wanted = exchange.slots.results[name, 0]
        if tuple(result["shape"]) != wanted.size:
            reason = f"{label(name)} has shape {result['shape']}, expected {list(wanted.size)}"
            return Finding("INCORRECT_SHAPE", reason)
        if result["dtype"] != wanted.dtype:
            reason = f"{label(name)} is {result['dtype']}, expected {wanted.dtype}"
            return Finding("INCORRECT_DTYPE", reason)
    return None


def _compare(
    exchange: Exchange, direction: Direction, asked: Collection[int], findings: list[Finding]
) -> float | None:
    """Add the findings from the values, if every attempt has them; return the largest error."""
    answered = exchange.answered[direction]
    if not answered.issuperset(asked):
        if answered and {found.verdict for found in findings} == {"UNSUPPORTED"}:
            findings.append(Finding("NONDETERMINISTIC", "unsupported in one run of two"))
        return None
    errors = []
    for name in _result_names(exchange.problem, direction):
        results = [exchange.result(name, attempt) for attempt in sorted(answered)]
        found, error = compare(exchange.problem, name, *results)
        findings += found
        errors.append(error)
    return max((error for error in errors if error is not None), default=None)


# --- the verdict ----------------------------------------------------------------------------------


def _verdict(
    problem: Problem,
    worker: Worker,
    direction: Direction,
    findings: list[Finding],
    error: float | None,
) -> Verdict:
    """Return the earliest cause as the verdict; a failure comes before `UNSUPPORTED`."""
    passed = Finding("PASSED", "")
    verdict, reason = min(
        findings or [passed],
        key=lambda found: (found.verdict in FINE, ORDER.index(found.verdict)),
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
