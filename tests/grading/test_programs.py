"""The reason of a failure that is of certain programs names them, or the command that does."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from common.errors import Kind
from common.grading.programs import with_programs
from common.solutions import Solution

COMMAND = "nox -s check -- alice --device cpu"


class Exchange:
    """An exchange with a process that finds `conflict`, or fails."""

    def __init__(self, device: str = "cpu", **reply: str) -> None:
        """Begin without a request."""
        self.problem = SimpleNamespace(device=device)
        deaths = SimpleNamespace(uncounted=contextlib.nullcontext)
        solution = Solution(Path("contributors/alice/rope.py"), "rope")
        self.worker = SimpleNamespace(deaths=deaths, solution=solution)
        self.reply, self.asked = reply, 0

    def conflicts(self, attempt, direction):
        self.asked += 1
        return self.reply


def test_two_programs_that_conflict_are_named():
    exchange = Exchange(forward="programs (0,) and (1,) both write y + 3")
    reason = with_programs(exchange, "forward", "NONDETERMINISTIC", "it differs")
    assert reason == "it differs: programs (0,) and (1,) both write y + 3"


@pytest.mark.parametrize("reply", [{}, {"forward": ""}, {"verdict": "CRASHED", "reason": "died"}])
def test_where_none_are_found_the_reason_stays(reply):
    exchange = Exchange(**reply)
    assert with_programs(exchange, "forward", "NONDETERMINISTIC", "it differs") == "it differs"
    assert exchange.asked == 1


@pytest.mark.parametrize("verdict", ["OUT_OF_BOUNDS", "INCORRECT_NUMERICAL", "PASSED"])
def test_any_other_failure_is_not_run_again(verdict):
    """An access out of bounds has named its program already."""
    exchange = Exchange(forward="programs (0,) and (1,) both write y + 3")
    assert with_programs(exchange, "forward", verdict, "the reason") == "the reason"
    assert not exchange.asked


def test_an_illegal_access_names_the_command_too():
    reason = "RuntimeError: CUDA error: an illegal memory access was encountered"
    found = with_programs(Exchange("cuda"), "forward", "RUNTIME_ERROR", reason, Kind.ILLEGAL_ACCESS)
    assert found == f"{reason} ({COMMAND} names the program)"


@pytest.mark.parametrize("verdict", ["INCORRECT_NUMERICAL", "PASSED"])
def test_a_failure_of_no_program_names_no_command(verdict):
    assert with_programs(Exchange("cuda"), "forward", verdict, "the reason") == "the reason"


@pytest.mark.parametrize(
    ("verdict", "named"),
    [("OUT_OF_BOUNDS", "the program"), ("NONDETERMINISTIC", "programs whose order matters")],
)
def test_on_a_gpu_the_command_is_named(verdict, named):
    exchange = Exchange("cuda", forward="programs (0,) and (1,)")
    reason = with_programs(exchange, "forward", verdict, "the reason")
    assert reason == f"the reason ({COMMAND} names {named})"
    assert not exchange.asked
