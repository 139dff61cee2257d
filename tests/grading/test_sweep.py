"""How many cases are graded at once, and how often each is answered."""

import gc
import math
import threading
import time
import weakref
from types import SimpleNamespace

import pytest

from common import ops
from common.grading import grade, sweep
from common.grading.sweep import Sweep
from common.solutions import Solution
from tests.support.waiting import LONGEST, wait_until

HALF = ops.load("rotate_half")
CASES = list(HALF.cases("smoke"))[:6]


def made(case):
    """Return a problem that is its own outline."""
    problem = SimpleNamespace(case=case)
    problem.summary = problem
    return problem


@pytest.fixture
def swept(monkeypatch, tmp_path, fork_server):
    """Return a function that grades one solution on CASES by a function in place of `grade`."""

    def start(grade, cores=2, make=made, overlap=True, device="cpu"):
        monkeypatch.setattr(sweep, "make_problem", lambda op, case, *_: make(case))
        monkeypatch.setattr(sweep, "cores", lambda: cores)
        several = [Solution(tmp_path / "rotate_half.py", "rotate_half")]
        with Sweep("cpu", overlap=overlap, server=fork_server, grade=grade) as one:
            one.device = device
            yield from one.grade(HALF, CASES, several)

    return start


class Heavy:
    """A problem whose tensors take memory."""

    def __init__(self, case):
        self.case, self.summary = case, made(case)


def test_a_few_cases_are_graded_and_then_timed_with_the_device_to_themselves(swept):
    active, graded_so_far, lock, heavy = [0], [0], threading.Lock(), weakref.WeakSet()

    def grade(problem, worker, repeats):
        with lock:
            active[0] += 1
            heavy.add(problem)
        time.sleep(0.05 + 0.1 * (problem.case is CASES[0]))
        with lock:
            active[0] -= 1
            graded_so_far[0] += 1
        return {}

    seen, done, cases = [], [], []
    for graded in swept(grade, sweep.AHEAD, Heavy, overlap=False, device="cuda"):
        assert wait_until(lambda: gc.collect() >= 0 and not heavy), "timing needs the memory"
        seen.append(active[0])
        done.append(graded_so_far[0])
        cases.append(graded.case)
        time.sleep(0.02)
    assert cases == CASES, "in their own order"
    assert seen == [0] * len(CASES)
    batches = [min(start + sweep.AHEAD, len(CASES)) for start in range(0, len(CASES), sweep.AHEAD)]
    assert done == [batch for batch in batches for _ in range(sweep.AHEAD)][: len(CASES)]


def test_a_slow_case_keeps_no_lane_idle(swept):
    """The first case ends after all others; its results come first, and theirs wait as outlines."""
    last, heavy, alive = threading.Event(), weakref.WeakSet(), []

    def grade(problem, worker, repeats):
        heavy.add(problem)
        if problem.case is CASES[0]:
            assert last.wait(LONGEST), "the other lane waits for this case"
        elif problem.case is CASES[-1]:
            # a thread that has ended one just now may still hold it
            wait_until(lambda: gc.collect() >= 0 and len(heavy) < len(CASES) - 1)
            alive.extend(heavy)
            last.set()
        return {}

    problems = [graded.problem for graded in swept(grade, make=Heavy)]
    assert [problem.case for problem in problems] == CASES
    assert not any(isinstance(problem, Heavy) for problem in problems)
    assert len(alive) < len(CASES) - 1, "the first, the last, and those that ended just now"


SELDOM = """
import itertools
import torch

calls = itertools.count()

def rotate_half(x):
    a, b = x.chunk(2, -1)
    out = torch.cat((-b, a), -1)
    return {later} if next(calls) == 8 else out
"""


@pytest.mark.parametrize(
    ("later", "repeats", "longest", "verdict"),
    [
        ("out * (1 + 2e-7)", 0, math.inf, "PASSED"),
        ("out * (1 + 2e-7)", 10, 0.0, "PASSED"),  # of ten there is time for the first
        ("out * (1 + 2e-7)", 10, math.inf, "NONDETERMINISTIC"),
        ("out.double()", 10, math.inf, "INCORRECT_DTYPE"),
        ("out.flatten()", 10, math.inf, "INCORRECT_SHAPE"),
        ("x.detach().zero_() + out", 10, math.inf, "MUTATED_INPUT"),
    ],
)
def test_what_differs_but_seldom_shows_in_many_answers(
    graded_source, monkeypatch, later, repeats, longest, verdict
):
    """The ninth call differs."""
    monkeypatch.setattr(grade, "LONGEST_REPEATS", longest)
    case = next(case for case in CASES if case.dtype == "float32" and not case.interleaved)
    (found,) = graded_source(HALF, [case], SELDOM.format(later=later), repeats)
    assert found.verdicts["forward"].verdict == verdict
