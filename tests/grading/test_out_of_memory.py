"""Who runs out of memory or is killed while timed is timed once more alone; then it counts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from common import ops
from common.errors import out_of_memory
from common.grading.memory import Memory, Room
from common.grading.sweep import Graded, Sweep, TooLarge
from common.measure import rows, timing
from common.measure.baseline import BaselineFailed
from common.measure.rows import measure
from common.measure.stopwatch import Stopwatch
from common.measure.timed_process import Failed
from common.sandbox.failures import judge
from common.solutions import Solution
from common.verdicts import Verdict
from tests.support.corpora import baseline_of

HALF = ops.load("rotate_half")
CASES = list(HALF.cases("smoke"))[:2]
PROBLEM = SimpleNamespace(op=HALF, case=CASES[0], device="cuda")
FULL = "out of memory: asked for 3.10 GiB, 1.20 GiB of 15.99 GiB free"


class Noted:
    """A worker or a baseline that notes what it is told."""

    def __init__(self) -> None:
        self.did = []

    def __getattr__(self, name):
        return lambda *_: self.did.append(name)


@pytest.fixture
def timed(monkeypatch):
    """Time a case whose attempts end as given; return the reply, and what was done in between."""

    def run(*outcomes, fits=True):
        left, frugal = iter(outcomes), []

        def attempt(once, worker, baseline):
            frugal.append(once.args[-1])
            outcome = next(left)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr(timing, "_undisturbed", attempt)
        monkeypatch.setattr(timing, "_fits", lambda *_: fits)
        worker, baseline, other = Noted(), Noted(), Noted()
        room = Room(Memory(lambda: 1 << 50))
        room.workers = [worker, other]
        done = SimpleNamespace(frugal=frugal, worker=worker, baseline=baseline, other=other)
        return timing.time_case(PROBLEM, worker, baseline, "forward", room), done

    return run


@pytest.mark.parametrize(
    "failed",
    [Failed("RUNTIME_ERROR", FULL), BaselineFailed(FULL), torch.OutOfMemoryError("CUDA " + FULL)],
)
def test_it_is_timed_once_more_alone(timed, failed):
    reply, done = timed(failed, {"gpu": {}})
    assert reply == {"gpu": {}}
    assert done.frugal == [False, True]
    assert (done.worker.did, done.baseline.did) == (["release", "close", "release"], ["restart"])
    assert done.other.did == ["release", "close"]


def test_what_then_still_runs_out_is_the_solutions(timed):
    reply, _ = timed(*[Failed("RUNTIME_ERROR", FULL)] * 2)
    assert reply == {"verdict": "RUNTIME_ERROR", "reason": FULL}


@pytest.mark.parametrize(
    "failed",
    [
        Failed("RUNTIME_ERROR", FULL),
        BaselineFailed(FULL),
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_where_eager_runs_out_in_its_place_too_the_case_does_not_fit(timed, failed):
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        timed(failed, failed, fits=False)
    reply, _ = timed(failed, failed)
    assert reply["verdict"] == "RUNTIME_ERROR", "it takes what eager needs"


def test_any_other_failure_counts_at_once(timed):
    reply, done = timed(Failed("RUNTIME_ERROR", "ValueError: no"))
    assert (reply["reason"], done.frugal) == ("ValueError: no", [False])


ENDS = """
import os
import signal
from pathlib import Path
import torch

TIMED, ENDED = (Path(__file__).with_name(name) for name in ("timed", "ended"))

def rotate_half(x):
    if TIMED.exists() and not ({once} and ENDED.exists()):
        ENDED.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
"""


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.slow
def test_who_is_killed_is_timed_once_more_alone(tmp_path, fork_server, monkeypatch, once):
    """Once is another's doing, and twice its own; who is timed after it is timed as ever."""
    short = {"gpu": 0.02, "host": 0.02}
    monkeypatch.setattr(timing, "SECONDS", {"gpu": short, "host": short})
    monkeypatch.setattr(Stopwatch, "forged", lambda *_: None)  # whatever else the machine does
    several = []
    for name in ("ends", "later"):
        (tmp_path / name).mkdir()
        several.append(Solution(tmp_path / name / "rotate_half.py", "rotate_half"))
        several[-1].path.write_text(ENDS.format(once=once))
    with Sweep("cpu", server=fork_server) as sweep:
        beside = baseline_of(sweep, HALF)
        graded = list(sweep.grade(HALF, CASES[:1], several))
        several[0].path.with_name("timed").touch()
        found = [rows.time_graded(each, beside, "forward", sweep.room) for each in graded]
    alone = "the process ended by SIGKILL, also with nothing beside it"
    assert several[0].path.with_name("ended").exists()
    assert all(times.get("host", {}).get("solution") for times in found[not once :])
    if not once:
        assert found[0] == {"verdict": "CRASHED", "reason": alone}


def test_a_case_that_does_not_fit_is_left_out_for_all(monkeypatch):
    """The rows before it stay; the board shows none of a case that is left out."""
    passed = {
        each: Verdict("a", "rotate_half", "case", each, "PASSED")
        for each in ("forward", "backward")
    }
    asked = []

    def grade(op, cases, solutions, skip, repeats):
        for case in cases:
            for solution in solutions:
                if not skip(solution, case):
                    problem = SimpleNamespace(op=op, case=case, device="cuda")
                    worker = SimpleNamespace(solution=solution, deaths=0)
                    yield Graded(worker, problem, passed)

    def time_graded(graded, *_):
        asked.append((graded.solution.handle, graded.case))
        if graded.case == CASES[0] and graded.solution.handle == "b":
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return {"unmeasured": "no"}

    monkeypatch.setattr(rows, "tier_cases", lambda *_, **how: [(HALF, CASES)])
    monkeypatch.setattr(rows, "time_graded", time_graded)
    monkeypatch.setattr(rows.baseline, "eager", lambda *_: Noted())
    monkeypatch.setattr(rows.baseline, "calibrate", lambda *_: {})
    solutions = [Solution(Path(name) / "rotate_half.py", HALF.name) for name in "abc"]
    sweep = SimpleNamespace(
        grade=grade, device="cuda", worker=lambda *_: Noted(), room=Room(Memory(lambda: 1 << 50))
    )
    found = list(measure(sweep, solutions, "run", Digests()))
    left = [one for one in found if isinstance(one, TooLarge)]
    assert left == [TooLarge(HALF, CASES[0], "out of memory")]
    assert [name for name, case in asked if case == CASES[0]] == ["a", "a", "b"]
    assert [name for name, case in asked if case == CASES[1]] == list("aabbcc")


def test_who_ends_in_each_timed_case_is_timed_no_more(monkeypatch):
    """Timed last it may pass, since graded it does."""
    worker = SimpleNamespace(solution=Solution(Path("a") / "rotate_half.py", HALF.name), deaths=0)
    ends, timed = iter([True, False, True, True, True]), []

    def time_graded(graded, *_):
        timed.append(next(ends))
        worker.deaths += timed[-1]
        return {"verdict": "TIMEOUT", "reason": "late"} if timed[-1] else {}

    monkeypatch.setattr(rows, "time_graded", time_graded)
    one = rows._Rows(Noted(), None, "run", Digests(), "board", 1.0)
    graded = SimpleNamespace(worker=worker, solution=worker.solution)
    told = [one._times(graded, "forward").get("reason") for _ in range(6)]
    assert told == ["late", None, "late", "late", *["not run again after 2 such ends: late"] * 2]
    assert len(timed) == 4


class Digests:
    def __getitem__(self, solution):
        return "s", "h"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "CUDA out of memory. Tried to allocate 3.10 GiB. GPU 0 has a total capacity of"
            " 15.99 GiB of which 1.20 GiB is free. Including non-PyTorch memory, this process has",
            FULL,
        ),
        ("Triton Error [CUDA]: out of memory", "out of memory"),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`", "out of memory"),
    ],
)
def test_the_reason_is_one_short_line(text, line):
    assert out_of_memory(text) == line
    for error in (torch.OutOfMemoryError(text), RuntimeError(text)):
        assert judge(error) == {"verdict": "RUNTIME_ERROR", "reason": line}
