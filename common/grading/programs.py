"""The programs of a launch that a failure is of, which only Triton's interpreter knows."""

from __future__ import annotations

from common.errors import Kind
from common.grading.exchange import LATEST, Exchange
from common.spec import Direction

NAMED = {"OUT_OF_BOUNDS": "the program", "NONDETERMINISTIC": "programs whose order matters"}
"""The verdicts that are of certain programs, and the interpreter's answer to them."""


def with_programs(
    exchange: Exchange, direction: Direction, verdict: str, reason: str, kind: Kind = Kind.NONE
) -> str:
    """Return the reason, and the two programs that conflict where results differ.

    On a GPU, return the reason and the command that names the program.
    """
    named = NAMED.get("OUT_OF_BOUNDS" if kind is Kind.ILLEGAL_ACCESS else verdict)
    solution = exchange.worker.solution
    if named and exchange.problem.device == "cuda" and not solution.peer:
        command = f"nox -s check -- {solution.handle} --device cpu"
        return f"{reason} ({command} names {named})"
    if verdict == "NONDETERMINISTIC" and (conflict := _conflict(exchange, direction)):
        return f"{reason}: {conflict}"
    return reason


def _conflict(exchange: Exchange, direction: Direction) -> str:
    """Return two programs that conflict, "" where the solution's process finds none."""
    with exchange.worker.deaths.uncounted():
        reply = exchange.conflicts(LATEST, direction)
    return "" if "verdict" in reply else str(reply.get(direction, ""))
