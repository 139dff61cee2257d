"""The requests of one case, in their order, and the findings that their replies lead to.

Two calls on the same inputs are asked forward and backward, one after the other. In one case of
four several calls live at the same time, as the layers of a model do: after forward and backward on
the inputs A come forward on B, in A's memory; forward on A, in other memory, up to four times in
small cases; and all backwards, in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from common.errors import Kind
from common.grading.compare import Finding, altered, differing, label
from common.grading.exchange import FIRST, FURTHER, LATEST, OTHER, Exchange
from common.grading.worker import NO_REPLY
from common.spec import DIRECTIONS, Direction
from common.verdicts import ENDED, UNFINISHED, VERDICTS
from common.wire import OUTPUT, Reply

NO_GRADIENT = Finding("UNSUPPORTED", "the output has no grad_fn")
Findings = dict[Direction, list[Finding]]


# --- attempts -------------------------------------------------------------------------------------


def ask_attempts(exchange: Exchange, findings: Findings) -> list[int]:
    """Make the attempts, as long as forward answers; return those that were made."""
    asked: list[int] = []
    several: tuple[tuple[int, ...], ...] = ((FIRST,), (LATEST,), *[(OTHER,)] * exchange.asks_other)
    if exchange.interleaved:
        several = ((FIRST,), (OTHER, LATEST, *exchange.beside))
    for attempts in several:
        if OTHER in attempts and ENDED & {found.verdict for found in findings["backward"]}:
            attempts = (LATEST,)  # one more death in backward, and forward would not be asked
        asked += attempts
        _ask_together(exchange, attempts, findings)
        if not exchange.answered["forward"].issuperset(asked):
            break
    return asked


def ask_further(exchange: Exchange, findings: Findings) -> None:
    """Ask in the further mode, if nothing is wrong with forward.

    Last, since a table that a solution keeps may be filled in any mode: one that was made in
    inference mode serves no call that has a backward. What the mode leaves unsupported is noted:
    coverage must not depend on the draw.
    """
    dead = ENDED & {found.verdict for found in findings["backward"]}
    if exchange.mode and not findings["forward"] and not dead:
        further: Findings = {"forward": [], "backward": list(findings["backward"])}
        _ask_together(exchange, (FURTHER,), further)
        for direction in DIRECTIONS:
            for found in further[direction][len(findings[direction]) :]:
                # a pool of threads that writes slices is no fault
                noted = found.kind is Kind.INFERENCE_THREAD
                if found.verdict == "UNSUPPORTED" or noted:
                    exchange.notes.append(found.reason)
                else:
                    findings[direction].append(found)


def _ask_together(exchange: Exchange, attempts: Sequence[int], findings: Findings) -> None:
    """Ask forward of each attempt, then backward of each, in any order.

    A failure ends what several calls are asked together: the next process would not know them.
    """
    ready = []
    for index, attempt in enumerate(attempts):
        exchange.lay_inputs(attempt)
        reply, failure = _ask(exchange, "forward", attempt, findings, alive=attempts[:index])
        if not reply.get("verdict") and _has_backward(exchange, attempt, reply, failure, findings):
            ready.append(attempt)
        if reply.get("verdict"):
            return
    if len(attempts) > 1:
        _ask_later(exchange, "forward", attempts[0], findings)
    exchange.dice.shuffle(ready)
    for attempt in ready:
        latest = len(ready) > 1 and attempt == ready[-1]
        retained = _ask_retained(exchange, attempt, findings) if latest else None
        answer = retained or _ask(exchange, "backward", attempt, findings)[0]
        if answer.get("verdict"):
            return
        if latest:
            _ask_later(exchange, "backward", ready[0], findings)


def _ask_retained(exchange: Exchange, attempt: int, findings: Findings) -> Reply | None:
    """Ask a backward that keeps its graph; return None where it has to be asked without that.

    Code that torch.compile made may raise where a graph is kept, and is right all the same. Where
    the process ended, as with a lost CUDA context, the failure counts: its graph is gone.
    """
    found: Findings = {"forward": [], "backward": []}
    reply, _ = _ask(exchange, "backward", attempt, found, retain=True)
    if reply.get("verdict") == "RUNTIME_ERROR" and exchange.worker.alive:
        exchange.notes.append(f"a backward with retain_graph=True fails: {reply['reason']}")
        return None
    findings["backward"] += found["backward"]
    exchange.retained = attempt
    return reply


def _has_backward(
    exchange: Exchange, attempt: int, reply: Reply, failure: Finding | None, findings: Findings
) -> bool:
    """Return whether the output can be differentiated; if not, add that to backward's findings."""
    if not exchange.names("backward", attempt) or (attempt == FURTHER and findings["backward"]):
        return False
    if failure and failure.verdict in ("INCORRECT_SHAPE", "INCORRECT_DTYPE"):
        findings["backward"].append(failure)
        return False
    if attempt != FURTHER:
        exchange.worker.differentiable.add(bool(reply.get("differentiable")))
    if not reply.get("differentiable"):
        found = NO_GRADIENT
        if attempt == FURTHER and exchange.mode:
            found = Finding("INCORRECT_NUMERICAL", f"{found.reason} {exchange.mode.text}")
        findings["backward"].append(found)
        return False
    return True


def repeat(exchange: Exchange, findings: Findings) -> None:
    """Ask for the latest attempt once more, in its own place, if nothing is wrong so far."""
    for direction in DIRECTIONS:
        names = exchange.names(direction)
        if findings[direction] or not names:
            return
        _, failure = _ask(exchange, direction, LATEST, findings)
        if failure:
            return
        for name in names:
            first, latest = exchange.result(name, FIRST), exchange.result(name, LATEST)
            findings[direction] += differing(name, first, latest)


# --- results that live on -------------------------------------------------------------------------


def _ask_later(exchange: Exchange, direction: Direction, attempt: int, findings: Findings) -> None:
    """Find a result of one call that changed when the next was made."""
    for name in exchange.names(direction, attempt):
        if attempt not in exchange.answered[direction]:
            return
        later = exchange.later(name, attempt)
        if isinstance(later, dict):
            findings[direction].append(_failure_in_words(later))
        else:
            findings[direction] += altered(name, exchange.result(name, attempt), later)


def note_second_backward(exchange: Exchange, findings: Findings) -> None:
    """Differentiate one graph a second time; note how it fails, since it decides nothing.

    Tampering is a finding all the same.
    """
    if exchange.retained is None:
        return
    found = exchange.second_backward(exchange.retained)
    what = "a second backward of the same graph"
    if "verdict" in found:
        failure = _failure_in_words(found)
        if failure.verdict == "TAMPERED":
            findings["backward"].append(failure)
        exchange.notes.append(f"{what} fails, {failure.verdict}: {failure.reason}")
        return
    exchange.notes += [
        f"{what} gives another gradient of {name}"
        for name, gradient in found.items()
        if gradient is None or differing(name, exchange.result(name, exchange.retained), gradient)
    ]


# --- replies --------------------------------------------------------------------------------------


def _ask(
    exchange: Exchange, direction: Direction, attempt: int, findings: Findings, **how: Any
) -> tuple[Reply, Finding | None]:
    """Return the reply to one request, and the finding that it leads to before any comparison.

    Where forward fails, backward has the same finding, unless the solution has no gradients and so
    leaves backward unsupported. A further mode's forward counts for itself.
    """
    forward = direction == "forward"
    ask = exchange.forward if forward else exchange.backward
    reply = ask(attempt, **how)
    results: dict[str, Reply | None] = {OUTPUT: reply} if forward else reply
    if not _is_reply(reply, results, exchange.names(direction, attempt)):
        reply = {"verdict": "CRASHED", "reason": NO_REPLY}
    failure = _failure(reply, results, exchange)
    if failure and attempt == FURTHER and exchange.mode:
        failure = failure._replace(reason=f"{failure.reason}, {exchange.mode.text}")
    if failure:
        findings[direction].append(failure)
        if forward and reply.get("verdict") and attempt != FURTHER:
            lacking = exchange.worker.differentiable == {False} and failure.verdict in UNFINISHED
            findings["backward"].append(NO_GRADIENT if lacking else failure)
    return reply, failure


def _is_reply(reply: Reply, results: dict[str, Reply | None], names: Iterable[str]) -> bool:
    """Return whether the reply is a failure in words, or describes each result that was asked for.

    Only a comparison can pass: a process that says `PASSED` of itself sent no reply.
    """
    if "verdict" in reply:
        return _is_failure(reply)
    return results.keys() == set(names) and all(map(_is_result, results.values()))


def _is_failure(reply: Reply) -> bool:
    failures = [verdict for verdict in VERDICTS if verdict != "PASSED"]
    return reply["verdict"] in failures and "reason" in reply


def _is_result(result: Any) -> bool:
    return result is None or (
        isinstance(result, dict)
        and isinstance(result.get("shape"), list)
        and isinstance(result.get("dtype"), str)
    )


def _failure_in_words(reply: Reply) -> Finding:
    if not _is_failure(reply):
        return Finding("CRASHED", NO_REPLY)
    kind = Kind(reply.get("kind", ""))
    return Finding(reply["verdict"], reply["reason"], kind=kind)


def _failure(reply: Reply, results: dict[str, Reply | None], exchange: Exchange) -> Finding | None:
    """Return the first failure in the reply, the shared memory, or a result's shape and dtype."""
    if reply.get("verdict"):
        return _failure_in_words(reply)
    if overrun := exchange.memory.overrun():
        return Finding("OUT_OF_BOUNDS", overrun)
    if changed := exchange.memory.changed():
        return Finding("MUTATED_INPUT", f"{changed} changed")
    for name, result in results.items():
        if result is None:
            return Finding("INCORRECT_NUMERICAL", f"{label(name)} is None, not even zeros")
        wanted = exchange.slots[FIRST].results[name, FIRST]
        if tuple(result["shape"]) != wanted.size:
            reason = f"{label(name)} has shape {result['shape']}, expected {list(wanted.size)}"
            return Finding("INCORRECT_SHAPE", reason)
        if result["dtype"] != wanted.dtype:
            reason = f"{label(name)} is {result['dtype']}, expected {wanted.dtype}"
            return Finding("INCORRECT_DTYPE", reason)
    return None
