"""What is timed again, with what remedy, how often, and what a case comes to in the end."""

import contextlib
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from common import ops
from common.errors import Kind
from common.grading.device import DeviceMemory
from common.grading.retries import Cause
from common.grading.supervisor import Supervisor
from common.measure import timing
from common.measure.baseline import Baseline, BaselineFailed, Disturbed
from common.measure.timing import Suspected
from common.verdicts import ISOLATED_TOO, Failure

HALF = ops.load("rotate_half")
CASES = list(HALF.cases("smoke"))[:1]
FULL = "out of memory: asked for 3.10 GiB, 1.20 GiB of 15.99 GiB free"
FITS = {"gpu": {}}
KILLED = "the process ended by SIGKILL"


class Worker:
    """A worker that notes what it is told, and whose probe takes these microseconds."""

    solution, changes = None, 0

    def __init__(self, *probes):
        self.did, self.ends, self.probes = [], 0, iter(probes)

    def ask(self, request):
        found = next(self.probes)
        return found if isinstance(found, dict) else {"probes": [[found] * request.probes]}

    def isolated(self, alone=False):
        self.did.append("alone")
        return contextlib.nullcontext()

    def __getattr__(self, name):
        return lambda *_: self.did.append(name)


@pytest.fixture
def timed(monkeypatch):
    """Time a case whose attempts end as given; return the reply, and what was done in between."""
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: None)

    def run(*outcomes, probes=()):
        solution, eager, other = Worker(), Worker(*probes), Worker()
        beside = Baseline(eager, {"gpu": 10.0})
        supervisor, left = Supervisor(Mock(), DeviceMemory(lambda: 1 << 50)), iter(outcomes)
        supervisor._free = [solution, eager, other]
        attempts = []

        def measure(self):
            attempts.append(beside.patient)
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


NO_ROOM = Failure("RUNTIME_ERROR", FULL, Kind.OUT_OF_MEMORY)
LEFTOVER = (
    "its work goes on between its calls: the probe takes 139.0 us by the gpu's clock with its"
    " process running, 10.0 us without"
)
FAULTS = [
    (Cause.OUT_OF_MEMORY, NO_ROOM, {"unmeasured": f"not timed: {FULL}"}),
    (Cause.KILLED, Failure("CRASHED", KILLED, Kind.KILLED),
     {"verdict": "CRASHED", "reason": f"{KILLED}, {ISOLATED_TOO}"}),
    (Cause.EAGER, BaselineFailed("it ended"), {"unmeasured": "not timed: it ended"}),
    (Cause.FORGED, Suspected(Cause.FORGED, "short"), {"verdict": "TAMPERED", "reason": "short"}),
    (Cause.LEFTOVER_WORK, Disturbed("gpu", 139.0), {"verdict": "TAMPERED", "reason": LEFTOVER}),
]  # fmt: skip


@pytest.mark.parametrize(("cause", "fault", "end"), FAULTS)
def test_a_fault_counts_once_it_shows_too_often(timed, cause, fault, end):
    quick, several = [10.0] * 9, [fault] * cause.times
    assert timed(*several, FITS, probes=quick)[0] == FITS, "as often it may be chance"
    assert timed(*several, fault, probes=quick)[0] == end


def test_causes_are_counted_each_by_itself(timed):
    faults = {cause: fault for cause, fault, _ in FAULTS}
    forged, ended, killed = (faults[each] for each in (Cause.FORGED, Cause.EAGER, Cause.KILLED))
    reply, done, _ = timed(forged, ended, killed, forged, ended, FITS)
    assert reply == FITS
    assert done["other"] == ["close"], "nothing else is alive from the kill on"
    assert done["eager"] == ["end_process", "close", "end_process"]
    assert done["solution"] == ["alone", "close", "alone", "release"]


def test_a_disturbance_that_goes_on_without_the_solution_is_anothers(timed):
    met = Disturbed("gpu", 139.0)
    reply, done, attempts = timed(met, met, FITS, probes=[10.0, 139.0])
    assert reply == FITS
    assert done["solution"].count("end_process") == 2
    assert attempts == [True, True, False], "slow probes are counted"


@pytest.mark.parametrize(
    "fault", [BaselineFailed(FULL, Kind.OUT_OF_MEMORY), torch.OutOfMemoryError("CUDA " + FULL)]
)
def test_where_eager_or_the_harness_lacks_memory_the_case_does_not_fit(timed, fault):
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        timed(fault, fault)


def test_any_other_failure_counts_at_once(timed):
    reply, *_ = timed(Failure("RUNTIME_ERROR", "ValueError: no"))
    assert reply == {"verdict": "RUNTIME_ERROR", "reason": "ValueError: no"}
    with pytest.raises(RuntimeError, match="the harness's own"):
        timed(RuntimeError("the harness's own"))
