"""What is timed again, with what remedy, how often, and what a case comes to in the end."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch

from common import ops
from common.errors import Kind
from common.grading.device import DeviceMemory
from common.grading.supervisor import RETRIES, Cause, Supervisor
from common.grading.sweep import Sweep
from common.measure import timing
from common.measure.baseline import Baseline, BaselineFailed, Disturbed
from common.measure.stopwatch import Stopwatch
from common.measure.timing import Suspected
from common.solutions import Solution
from common.verdicts import ISOLATED_TOO, Failure
from tests.support.corpora import SHORT, baseline_of

HALF = ops.load("rotate_half")
CASES = list(HALF.cases("smoke"))[:1]
FULL = "out of memory: asked for 3.10 GiB, 1.20 GiB of 15.99 GiB free"
FITS = {"gpu": {}}
KILLED = "the process ended by SIGKILL"


class Worker:
    """A worker that notes what it is told, and whose probe takes these microseconds."""

    solution, changes = None, 0

    def __init__(self, *probes):
        self.did, self.crashes, self.probes = [], 0, iter(probes)

    def ask(self, request):
        found = next(self.probes)
        return found if isinstance(found, dict) else {"probes": [[found] * request.probes]}

    def isolated(self):
        self.did.append("alone")
        return contextlib.nullcontext()

    def __getattr__(self, name):
        return lambda *_: self.did.append(name)


@pytest.fixture
def timed(monkeypatch):
    """Time a case whose attempts end as given; return the reply, and what was done in between."""
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: None)

    def run(*outcomes, probes=()):
        solution, eager, other, reference = Worker(), Worker(*probes), Worker(), Worker()
        beside = Baseline(eager, {"gpu": 10.0}, reference)
        supervisor, left = Supervisor(None, DeviceMemory(lambda: 1 << 50)), iter(outcomes)
        supervisor._free = [solution, eager, other]
        attempts = []

        def measure(self):
            attempts.append((self.worker is reference, beside.patient))
            outcome = next(left)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr(timing.Timing, "measure", measure)
        problem = SimpleNamespace(op=HALF, case=CASES[0], device="cuda")
        graded = SimpleNamespace(problem=problem, case=CASES[0], worker=solution)
        reply = timing.time_case(graded, beside, "forward", supervisor)
        assert next(left, None) is None
        done = {"solution": solution.did, "eager": eager.did, "other": other.did}
        return reply, done, attempts

    return run


NO_ROOM = [
    Failure("RUNTIME_ERROR", FULL, Kind.OUT_OF_MEMORY),
    BaselineFailed(FULL, Kind.OUT_OF_MEMORY),
    torch.OutOfMemoryError("CUDA " + FULL),
]
LEFTOVER = (
    "its work goes on between its calls: the probe takes 139.0 us by the gpu's clock with its"
    " process running, 10.0 us without"
)
FAULTS = [
    *((Cause.OUT_OF_MEMORY, fault,
       {"verdict": "RUNTIME_ERROR", "reason": FULL, "kind": "out of memory"})
      for fault in NO_ROOM),
    (Cause.KILLED, Failure("CRASHED", KILLED, Kind.KILLED),
     {"verdict": "CRASHED", "reason": f"{KILLED}, {ISOLATED_TOO}"}),
    (Cause.EAGER, BaselineFailed("it ended"), {"unmeasured": "not timed: it ended"}),
    (Cause.FORGED, Suspected(Cause.FORGED, "short"), {"verdict": "TAMPERED", "reason": "short"}),
    (Cause.LEFTOVER_WORK, Disturbed("gpu", 139.0), {"verdict": "TAMPERED", "reason": LEFTOVER}),
]  # fmt: skip
BY_CAUSE = {cause: fault for cause, fault, _ in FAULTS}


@pytest.mark.parametrize(("cause", "fault", "end"), FAULTS)
def test_a_fault_counts_once_it_shows_too_often(timed, cause, fault, end):
    """Where memory runs out, the last attempt is eager's, in the solution's place."""
    quick, several = [10.0] * 9, [fault] * RETRIES[cause].times
    assert timed(*several, FITS, probes=quick)[0] == FITS, "as often it may be chance"
    in_its_place = [FITS] * (cause == Cause.OUT_OF_MEMORY)
    assert timed(*several, fault, *in_its_place, probes=quick)[0] == end


def test_causes_are_counted_each_by_itself(timed):
    forged, ended, killed = (BY_CAUSE[cause] for cause in (Cause.FORGED, Cause.EAGER, Cause.KILLED))
    reply, done, _ = timed(forged, ended, killed, forged, ended, FITS)
    assert reply == FITS
    assert done["other"] == ["close"], "nothing else is alive from the kill on"


@pytest.mark.parametrize(
    ("cause", "solution", "eager", "other"),
    [
        (Cause.OUT_OF_MEMORY, ["close", "alone"], ["close"], ["close"]),
        (Cause.KILLED, ["close", "alone"], ["close"], ["close"]),
        (Cause.EAGER, [], ["renew"], []),
        (Cause.FORGED, [], [], []),
        (Cause.LEFTOVER_WORK, ["renew"], [], []),
    ],
)
def test_each_cause_has_its_remedy(timed, cause, solution, eager, other):
    _, done, attempts = timed(BY_CAUSE[cause], FITS, probes=[10.0])
    assert done["solution"] == ["alone", *solution, "release"], "in the end its memory is free"
    assert (done["eager"], done["other"]) == (eager, other)
    assert attempts == [(False, True)] * 2


def test_a_disturbance_that_goes_on_without_the_solution_is_anothers(timed):
    met = Disturbed("gpu", 139.0)
    reply, done, attempts = timed(met, met, FITS, probes=[10.0, 139.0])
    assert reply == FITS
    assert done["solution"].count("renew") == 2
    assert attempts[-1] == (False, False), "slow probes are counted"


NO_CUBLAS = RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`")


@pytest.mark.parametrize("fault", [*NO_ROOM, NO_CUBLAS])
def test_where_eager_runs_out_in_its_place_too_the_case_does_not_fit(timed, fault):
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        timed(fault, fault, fault)
    _, _, attempts = timed(fault, fault, Failure("RUNTIME_ERROR", "no memory is lacking"))
    assert attempts == [(False, True), (False, True), (True, False)]


def test_eagers_death_under_the_probe_is_a_failure_of_eager(timed):
    dead = {"verdict": "CRASHED", "reason": "it ended"}
    met = Disturbed("gpu", 139.0)
    reply, done, _ = timed(met, FITS, probes=[dead])
    assert (reply, done["eager"]) == (FITS, ["renew"])
    reply, *_ = timed(met, met, met, probes=[dead] * 3)
    assert reply == {"unmeasured": "not timed: eager's process failed: it ended"}


def test_any_other_failure_counts_at_once(timed):
    reply, *_ = timed(Failure("RUNTIME_ERROR", "ValueError: no"))
    assert reply == {"verdict": "RUNTIME_ERROR", "reason": "ValueError: no"}
    with pytest.raises(RuntimeError, match="the harness's own"):
        timed(RuntimeError("the harness's own"))


ENDS_ITSELF = """
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
    monkeypatch.setattr(Stopwatch, "forged", lambda *_: None)  # whatever else the machine does
    several = []
    for name in ("ends", "later"):
        (tmp_path / name).mkdir()
        several.append(Solution(tmp_path / name / "rotate_half.py", "rotate_half"))
        several[-1].path.write_text(ENDS_ITSELF.format(once=once))
    with Sweep("cpu", server=fork_server) as sweep:
        beside = baseline_of(sweep, HALF)
        graded = list(sweep.grade(HALF, CASES, several))
        several[0].path.with_name("timed").touch()
        replies = [
            timing.time_case(each, beside, "forward", sweep.supervisor, SHORT) for each in graded
        ]
    isolated = f"{KILLED}, also with no other process running"
    assert several[0].path.with_name("ended").exists()
    assert all(times.get("host", {}).get("solution") for times in replies[not once :])
    if not once:
        assert replies[0] == {"verdict": "CRASHED", "reason": isolated}
