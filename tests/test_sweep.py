"""How many cases are graded at once, and how often each is answered."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import secrets
import threading
import time
import weakref
from types import SimpleNamespace

import pytest

from common import ops
from common.grading import grade, sweep, tiers
from common.grading.deaths import LIVES
from common.grading.room import Room
from common.grading.sweep import Sweep
from common.solutions import Solution

HALF = ops.load("rotate_half")
CASES = list(HALF.cases("smoke"))[:6]


def made(case):
    """Return a problem that is its own outline."""
    problem = SimpleNamespace(case=case)
    problem.outline = problem
    return problem


@pytest.fixture
def seen_at_each_yield(monkeypatch, tmp_path, fork_server):
    """Return how many cases are being graded, and how many have been, at each result."""

    def start(overlap: bool) -> tuple[list[int], list[int]]:
        active, graded_so_far, lock = [0], [0], threading.Lock()

        def grade(problem, worker, repeats):
            with lock:
                active[0] += 1
            time.sleep(0.05 + 0.1 * (problem.case is CASES[0]))
            with lock:
                active[0] -= 1
                graded_so_far[0] += 1
            return {}

        monkeypatch.setattr(sweep, "make_problem", lambda op, case, *_: made(case))
        several = [Solution(tmp_path / "rotate_half.py", "rotate_half")]
        seen, done, cases = [], [], []
        with Sweep("cpu", overlap=overlap, server=fork_server, grade=grade) as one:
            one._cores = sweep.AHEAD
            one.device = "cpu" if overlap else "cuda"
            for graded in one.grade(HALF, CASES, several):
                seen.append(active[0])
                done.append(graded_so_far[0])
                cases.append(graded.case)
                time.sleep(0.02)
        assert cases == CASES, "in their own order"
        return seen, done

    return start


def test_a_few_cases_are_graded_and_then_timed_with_the_device_to_themselves(seen_at_each_yield):
    seen, done = seen_at_each_yield(overlap=False)
    assert seen == [0] * len(CASES)
    batches = [min(start + sweep.AHEAD, len(CASES)) for start in range(0, len(CASES), sweep.AHEAD)]
    assert done == [each for each in batches for _ in range(sweep.AHEAD)][: len(CASES)]


def test_several_cases_are_under_way_at_once(seen_at_each_yield):
    seen, _ = seen_at_each_yield(overlap=True)
    assert max(seen) > 0


class Heavy:
    """A problem whose tensors take memory."""

    def __init__(self, case):
        self.case, self.outline = case, made(case)


def test_a_slow_case_keeps_no_lane_idle(monkeypatch, tmp_path, fork_server):
    """The first case ends after all others; its results come first, and theirs wait as outlines."""
    last, heavy, alive = threading.Event(), weakref.WeakSet(), []

    def grade(problem, worker, repeats):
        heavy.add(problem)
        if problem.case is CASES[0]:
            assert last.wait(60), "the other lane waits for this case"
        elif problem.case is CASES[-1]:
            gc.collect()
            alive.extend(heavy)
            last.set()
        return {}

    monkeypatch.setattr(sweep, "make_problem", lambda op, case, *_: Heavy(case))
    several = [Solution(tmp_path / "rotate_half.py", "rotate_half")]
    with Sweep("cpu", overlap=True, server=fork_server, grade=grade) as one:
        one._cores = 2
        found = [graded.problem for graded in one.grade(HALF, CASES, several)]
    assert [each.case for each in found] == CASES
    assert not any(isinstance(each, Heavy) for each in found)
    assert len(alive) < len(CASES) - 1, "the first, the last, and those that ended just now"


def test_a_case_goes_to_the_worker_that_was_asked_last(monkeypatch, tmp_path, fork_server):
    """Its process runs already; those of other lanes start only for cases beside it."""
    asked = []

    def grade(problem, worker, repeats):
        asked.append(worker)
        return {}

    monkeypatch.setattr(sweep, "make_problem", lambda op, case, *_: Heavy(case))
    monkeypatch.setattr(Sweep, "_lanes", lambda *_: (4, 1))
    several = [Solution(tmp_path / "rotate_half.py", "rotate_half")]
    with Sweep("cpu", overlap=True, server=fork_server, grade=grade) as one:
        list(one.grade(HALF, CASES, several))
    assert asked == asked[:1] * len(CASES)


SELDOM = """
import itertools
import torch

calls = itertools.count()

def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1) * (1 + 2e-7 * (next(calls) == 8))
"""


@pytest.mark.parametrize(
    ("repeats", "verdicts"),
    [
        (0, ["PASSED", "PASSED"]),
        (10, ["NONDETERMINISTIC", "NONDETERMINISTIC"]),
    ],
)
def test_what_differs_but_seldom_shows_in_many_answers(tmp_path, fork_server, repeats, verdicts):
    path = tmp_path / "rotate_half.py"
    path.write_text(SELDOM)
    case = next(case for case in CASES if case.dtype == "float32" and not case.interleaved)
    with Sweep("cpu", server=fork_server) as one:
        (found,) = one.grade(HALF, [case], [Solution(path, "rotate_half")], repeats=repeats)
    assert [verdict.verdict for verdict in found.verdicts.values()] == verdicts


def test_a_slow_case_is_not_answered_again_and_again(tmp_path, fork_server, monkeypatch):
    """Of ten further answers there is time for the first, and the ninth call differs."""
    monkeypatch.setattr(grade, "LONGEST_REPEATS", 0.0)
    path = tmp_path / "rotate_half.py"
    path.write_text(SELDOM)
    case = next(case for case in CASES if case.dtype == "float32" and not case.interleaved)
    with Sweep("cpu", server=fork_server) as one:
        (found,) = one.grade(HALF, [case], [Solution(path, "rotate_half")], repeats=10)
    assert [verdict.verdict for verdict in found.verdicts.values()] == ["PASSED", "PASSED"]


@pytest.mark.parametrize(
    ("later", "verdict"),
    [
        ("out.double()", "INCORRECT_DTYPE"),
        ("out.flatten()", "INCORRECT_SHAPE"),
        ("x.detach().zero_() + out", "MUTATED_INPUT"),
    ],
)
def test_each_of_many_answers_is_checked(tmp_path, fork_server, later, verdict):
    path = tmp_path / "rotate_half.py"
    path.write_text(
        "import itertools\nimport torch\n\ncalls = itertools.count()\n\n"
        "def rotate_half(x):\n    a, b = x.chunk(2, -1)\n    out = torch.cat((-b, a), -1)\n"
        f"    return {later} if next(calls) == 8 else out\n"
    )
    case = next(case for case in CASES if case.dtype == "float32" and not case.interleaved)
    with Sweep("cpu", server=fork_server) as one:
        (found,) = one.grade(HALF, [case], [Solution(path, "rotate_half")], repeats=10)
    assert found.verdicts["forward"].verdict == verdict


def test_a_given_server_outlives_the_sweep(fork_server, tmp_path):
    with Sweep("cpu", server=fork_server) as one:
        worker = one.worker(Solution(tmp_path / "rotate_half.py", "rotate_half"))
        assert worker.ask("settle")["verdict"] == "COMPILE_ERROR", "it lacks the file"
        server, pid = worker._pids
    assert fork_server.runs(server)
    assert not os.path.exists(f"/proc/{pid}"), "the workers end"


def test_the_boards_cases_are_repeated_on_a_gpu_alone():
    asked = {
        (tier, on): tiers.repeats(tier, on) > 0
        for tier in ("board", "matrix")
        for on in ("cuda", "cpu")
    }
    assert [where for where, many in asked.items() if many] == [("board", "cuda")]


# --- killed processes -----------------------------------------------------------------------------

KILLED = """
import os
import signal
from pathlib import Path
import torch

RUNS = Path(__file__).with_name("runs")
seen = []

def end(grad=None):
    with RUNS.open("a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGKILL)

def rotate_half(x):
    seen.append(x.detach().clone())
    {line}
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
"""
PLAIN = [case for case in HALF.cases("smoke") if not (case.interleaved or case.span)][:12]
ALONE = "the process ended by SIGKILL, also with nothing beside it"


@pytest.fixture
def killed(tmp_path, fork_server, monkeypatch):
    """Grade a solution with this line beside a right one; return its verdicts, deaths and ends."""
    alone, beside = Room.alone, []

    @contextlib.contextmanager
    def noted(room, worker):
        with alone(room, worker):
            beside.append(sum(each.alive for each in room.workers))
            yield

    monkeypatch.setattr(Room, "alone", noted)

    def written(name, line):
        path = tmp_path / name / "rotate_half.py"
        path.parent.mkdir()
        path.write_text(KILLED.format(line=line))
        return Solution(path, "rotate_half")

    def start(line, count):
        dying, right = written("dying", line), written("right", "pass")
        with Sweep("cpu", overlap=True, server=fork_server) as one:
            one._cores = 4  # two lanes for each
            found = list(one.grade(HALF, PLAIN[:count], [dying, right]))
            deaths = [one.worker(dying, lane).deaths for lane in range(2)]
        verdicts = {
            each: [tuple(one.verdicts.values()) for one in found if one.solution == each]
            for each in (dying, right)
        }
        assert [[v.verdict for v in two] for two in verdicts[right]] == [["PASSED"] * 2] * count
        assert len(verdicts[dying]) == count
        assert not any(beside), "no other process is there meanwhile"
        ends = len(dying.path.with_name("runs").read_text())
        return verdicts[dying], deaths, ends, len(beside)

    return start


@pytest.mark.parametrize(
    "line",
    [
        "RUNS.exists() or end()",
        "len(seen) == 3 and not RUNS.exists() and end()",
        "RUNS.exists() or x.requires_grad and x.register_hook(end)",
    ],
    ids=["first call", "later call", "backward"],
)
def test_who_is_killed_beside_others_is_asked_again_alone(killed, line):
    found, deaths, ends, tries = killed(line, 4)
    assert ends >= 1 and tries >= 1
    assert {(v.verdict, v.reason) for two in found for v in two} == {("PASSED", "")}
    assert deaths == [[], []]


def test_who_ends_itself_alone_too_has_crashed(killed):
    """And is tried alone twice, however many cases it ends itself in."""
    found, deaths, ends, tries = killed("end()", len(PLAIN))
    assert tries == LIVES
    assert {v.verdict for two in found for v in two} == {"CRASHED"}
    assert [v.reason for two in found[:2] for v in two] == [ALONE] * 4
    assert found[-1][0].reason.startswith(f"not run again after {LIVES} such ends: ")
    assert [[death.reason for death in one] for one in deaths] == [[ALONE] * LIVES] * 2
    assert ends <= LIVES * (2 + LIVES + 1), "in each lane, after each try alone, and alone"


def test_who_ends_itself_in_one_case_is_asked_the_others(killed):
    shape = tuple(HALF.output(PLAIN[1]))
    same = sum(tuple(HALF.output(case)) == shape for case in PLAIN[:6])
    assert same < 3
    found, *_ = killed(f"x.shape == {shape} and end()", 6)
    assert [v.verdict for two in found for v in two].count("CRASHED") == 2 * same
    assert found[1][0].reason == ALONE and found[0][0].verdict == "PASSED"


def test_the_second_try_asks_for_no_less(killed, monkeypatch):
    """Who ends itself when it is asked on other inputs does not get another draw."""
    draws = itertools.chain([0, 0], itertools.repeat(1))
    fixed = SimpleNamespace(randbelow=lambda _: next(draws), SystemRandom=secrets.SystemRandom)
    monkeypatch.setattr("common.grading.chance.secrets", fixed)
    found, _, ends, _ = killed("torch.equal(x, seen[0]) or end()", 1)
    assert [v.reason for v in found[0]] == [ALONE, ALONE]
    assert ends == 2
