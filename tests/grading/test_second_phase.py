"""What is asked again with nothing else alive, since something else may have caused its failure."""

import contextlib

import pytest
import torch

from common import ops
from common.errors import UserError
from common.grading import sweep as sweeps
from common.grading.retries import Ends
from common.grading.supervisor import Supervisor
from common.grading.sweep import Graded, Sweep, TooLarge
from common.grading.worker import Worker
from common.verdicts import ISOLATED_TOO
from tests.support import workers

HALF = ops.load("rotate_half")
PLAIN = [case for case in HALF.cases("smoke") if not (case.interleaved or case.far_bytes)][:12]
SOURCE = """
import os
import signal
from pathlib import Path
import torch

BESIDE, RUNS = (Path(__file__).with_name(name) for name in ("beside", "runs"))
seen = []

def end(grad=None):
    with RUNS.open("a") as file:
        file.write("x" if BESIDE.exists() else "X")
    os.kill(os.getpid(), signal.SIGKILL)

def forever():
    with RUNS.open("a") as file:
        file.write("x" if BESIDE.exists() else "X")
    while True: pass

def lack():
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 10.00 GiB. GPU 0 has a total capacity of 15.99 GiB"
        " of which 8.50 GiB is free. Including non-PyTorch memory, this process has ..."
    )

def rotate_half(x):
    seen.append(x.detach().clone())
    {line}
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
"""
"""It notes an x where it ends beside others, an X where it ends alone."""
KILLED = f"the process ended by SIGKILL, {ISOLATED_TOO}"
LACKS = "out of memory: asked for 10.00 GiB, 8.50 GiB of 15.99 GiB free"
LOOP = f", line {SOURCE.splitlines().index('    while True: pass') + 1} of rotate_half.py"
LATE = f"no answer within 1 s of its own work{LOOP}"


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a solution with this line."""
    return lambda name, line: workers.written(tmp_path, SOURCE.format(line=line), handle=name)


@pytest.fixture
def failing(written, fork_server, monkeypatch):
    """Grade a solution with this line beside a right one; return its verdicts and its ends."""
    alone = Supervisor.alone

    @contextlib.contextmanager
    def noted(supervisor, worker):
        with alone(supervisor, worker):
            assert not any(each.alive for each in supervisor.workers)
            concurrent = worker.solution.path.with_name("beside")
            concurrent.unlink(missing_ok=True)
            yield
            if concurrent.parent.exists() and "eager" not in concurrent.parts:
                concurrent.touch()

    monkeypatch.setattr(Supervisor, "alone", noted)
    monkeypatch.setattr(sweeps, "cores", lambda: 4)  # two lanes for each

    def start(line, count, later=(), **how):
        solution, right = written("failing", line), written("right", "pass")
        solution.path.with_name("beside").touch()
        with Sweep("cpu", server=fork_server, **how) as one:
            found = list(one.grade(HALF, PLAIN[:count], [solution, right]))
            found += one.grade(HALF, later, [solution])
        of = {each: [one for one in found if one.solution == each] for each in (solution, right)}
        verdicts = [v.verdict for one in of[right] for v in one.verdicts.values()]
        assert verdicts == ["PASSED"] * 2 * count
        assert {one.case for one in of[solution]} == {*PLAIN[:count], *later}
        runs = solution.path.with_name("runs")
        ends = runs.read_text() if runs.exists() else ""
        return {one.case: tuple(one.verdicts.values()) for one in of[solution]}, ends

    return start


def told(found):
    """Return the verdicts and reasons."""
    return {(each.verdict, each.reason) for two in found.values() for each in two}


@pytest.mark.parametrize(
    "line",
    [
        "BESIDE.exists() and end()",
        "len(seen) == 3 and BESIDE.exists() and end()",
        "BESIDE.exists() and x.requires_grad and x.register_hook(end)",
        "BESIDE.exists() and lack()",
        "BESIDE.exists() and forever()",
    ],
    ids=["killed", "killed later", "killed in backward", "no memory", "late"],
)
@pytest.mark.slow
def test_what_others_may_have_caused_is_asked_again_alone(failing, line):
    found, ends = failing(line, 2, deadline=1.0)
    assert told(found) == {("PASSED", "")}
    assert "X" not in ends


@pytest.mark.parametrize(
    ("line", "verdict", "reason", "isolated"),
    [
        ("end()", "CRASHED", KILLED, Ends.LIMIT),  # a kill beside others says nothing
        ("forever()", "TIMEOUT", LATE, Ends.LIMIT),
        ("lack()", "RUNTIME_ERROR", LACKS, 0),
    ],
)
@pytest.mark.slow
def test_what_fails_alone_too_is_its_own(failing, line, verdict, reason, isolated):
    """And one whose process ends each time is not run again, however many cases there are."""
    found, ends = failing(line, 3, later=PLAIN[3:4], deadline=1.0)
    assert {name for name, _ in told(found)} == {verdict}
    own = [each for each in found.values() if each[0].reason == reason]
    assert len(own) == (isolated or 4)
    left = {each[0].reason for each in found.values()} - {reason}
    refused = f"not run again after {Ends.LIMIT} such ends: {reason}"
    assert left == ({refused} if isolated else set())
    assert ends.count("X") == isolated


def test_who_ends_itself_in_one_case_is_asked_the_others(failing):
    shapes = {case: HALF.outputs(case)["output"] for case in PLAIN[:6]}
    shape = next(each for each in shapes.values() if [*shapes.values()].count(each) == 1)
    found, _ = failing(f"x.shape == {shape} and end()", 6)
    for case, two in found.items():
        assert {v.verdict for v in two} == {"CRASHED" if shapes[case] == shape else "PASSED"}
        assert two[0].reason == KILLED * (shapes[case] == shape)


@pytest.mark.slow
def test_the_only_solution_that_is_late_is_asked_once(written, fork_server):
    """Eager's worker, which has no process, is no company."""
    late = written("late", "forever()")
    with Sweep("cpu", server=fork_server, deadline=1.0) as one:
        one.supervisor.baseline(sweeps.eager_of(HALF))
        (found,) = one.grade(HALF, PLAIN[:1], [late])
    assert {each.verdict for each in found.verdicts.values()} == {"TIMEOUT"}
    assert late.path.with_name("runs").read_text() == "X"


# --- the harness lacks memory ---------------------------------------------------------------------


@pytest.mark.parametrize("fails", [1, 2, 99])
@pytest.mark.slow
def test_a_problem_that_does_not_fit_is_made_again_alone(written, fork_server, monkeypatch, fails):
    """Where it does not fit then either, the case is left out, once, and the others go on."""
    make, tries = sweeps.make_problem, []

    def made(op, case, seed, device, scarce):
        if case == PLAIN[0]:
            tries.append(case)
            if len(tries) <= fails:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB.")
        return make(op, case, seed, device, scarce)

    monkeypatch.setattr(sweeps, "make_problem", made)
    several = [written(name, "pass") for name in ("first", "second")]
    with Sweep("cpu", server=fork_server) as one:
        found = list(one.grade(HALF, PLAIN[:2], several))
    fits = fails < 99
    left = [each for each in found if isinstance(each, TooLarge)]
    assert left == [TooLarge(HALF, PLAIN[0], "out of memory")] * (not fits)
    others = [each for each in found if isinstance(each, Graded)]
    assert len(others) == len(several) * (1 + fits)
    for reason in (v.reason for other in others for v in other.verdicts.values() if not v.fine):
        assert (reason, fails) == ("out of memory in the harness next to this solution", 2), (
            "eager has enough in its place"
        )


def test_a_case_is_left_out_if_eager_cannot_map_memory_either(written, fork_server, monkeypatch):
    ask = Worker.ask

    def asked(worker, request):
        if worker.solution.peer:
            raise UserError("this machine cannot share GPU memory between processes")
        return ask(worker, request)

    monkeypatch.setattr(Worker, "ask", asked)
    with Sweep("cpu", server=fork_server) as one:
        found = list(one.grade(HALF, PLAIN[:1], [written("lacks", "lack()")]))
    assert found == [TooLarge(HALF, PLAIN[0], LACKS)]
