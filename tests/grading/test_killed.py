"""Who is asked once more where something outside of the harness has killed its process."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from common import draws, ops
from common.errors import Kind
from common.grading import exchange, sweep
from common.grading.deaths import LIVES, Deaths
from common.grading.exchange import OTHER_EVERY
from common.grading.room import Room
from common.grading.sweep import Sweep
from common.solutions import Solution

HALF = ops.load("rotate_half")
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
ASKS_OTHER = next(
    seed
    for seed in range(99)
    if not draws.Draws(seed, ((PLAIN[0].name, PLAIN[0].kind),)).dealt(
        OTHER_EVERY, PLAIN[0].name, "dying/rotate_half", "other inputs"
    )
)
"""A seed by which the first case is asked on other inputs."""
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
    monkeypatch.setattr(sweep, "cores", lambda: 4)  # two lanes for each

    def written(name, line):
        path = tmp_path / name / "rotate_half.py"
        path.parent.mkdir()
        path.write_text(KILLED.format(line=line))
        return Solution(path, "rotate_half")

    def start(line, count):
        dying, right = written("dying", line), written("right", "pass")
        with Sweep("cpu", overlap=True, server=fork_server) as one:
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


@pytest.mark.slow
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
    shapes = [tuple(HALF.output(case)) for case in PLAIN[:6]]
    (shape, *_) = (shape for shape in shapes if shapes.count(shape) == 1)
    found, *_ = killed(f"x.shape == {shape} and end()", 6)
    for this, two in zip(shapes, found, strict=True):
        assert {v.verdict for v in two} == {"CRASHED" if this == shape else "PASSED"}
    assert found[shapes.index(shape)][0].reason == ALONE


def test_the_second_try_asks_for_no_less(killed, monkeypatch):
    """Who ends itself when it is asked on other inputs does not get another draw."""
    asked = []

    def chosen(problem, solution):
        choices = choose(problem, solution)
        if solution.handle == "dying":
            asked.append(choices.other)
        return choices

    choose = exchange.choose
    monkeypatch.setattr(exchange, "choose", chosen)
    monkeypatch.setattr(draws, "SOURCE", SimpleNamespace(getrandbits=lambda _: ASKS_OTHER))
    found, _, ends, _ = killed("torch.equal(x, seen[0]) or end()", 1)
    assert asked == [True, True]
    assert [v.reason for v in found[0]] == [ALONE, ALONE]
    assert ends == 2


def test_who_is_not_run_again_after_kills_may_still_be_asked_alone():
    deaths = Deaths()
    deaths.kill()
    deaths.kill()
    assert deaths.in_place_of_a_run(LIVES).kind is Kind.KILLED
