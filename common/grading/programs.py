"""The programs of a launch that a failure is of, which only Triton's interpreter knows."""

from __future__ import annotations

from common.grading.exchange import LATEST, Exchange
from common.spec import Direction

NAMED = {"OUT_OF_BOUNDS": "the program", "NONDETERMINISTIC": "programs whose order matters"}
"""The verdicts that are of certain programs, and the interpreter's answer to them."""
ILLEGAL = "illegal memory access"
"""CUDA's words for an access far out of bounds, which ends the process."""


def with_programs(exchange: Exchange, direction: Direction, verdict: str, reason: str) -> str:
    """Return the reason, and the two programs that conflict where results differ.

    On a GPU, return the reason and the command that names the program.
    """
    named = NAMED["OUT_OF_BOUNDS"] if ILLEGAL in reason else NAMED.get(verdict)
    solution = exchange.worker.solution
    if named and exchange.problem.device == "cuda" and not solution.peer:
        command = f"nox -s check -- {solution.handle} --device cpu"
        return f"{reason} ({command} names {named})"
    if verdict == "NONDETERMINISTIC" and (conflict := _conflict(exchange, direction)):
        return f"{reason}: {conflict}"
    return reason


def _conflict(exchange: Exchange, direction: Direction) -> str:
    """Return two programs that conflict, "" where the solution's process finds none."""
    reply = exchange.conflicts(LATEST, direction)
    return "" if "verdict" in reply else str(reply.get(direction, ""))
