"""How the deaths of a solution's processes are told, and which of them count."""

from __future__ import annotations

import contextlib

import pytest

from common.grading.deaths import Died
from tests.support.asking import HALF, RIGHT, ask


@pytest.mark.parametrize(
    ("line", "verdict", "reason"),
    [
        ("import os; os.abort()", "CRASHED", "SIGABRT"),
        ("import os; os._exit(0)", "CRASHED", "exit(0)"),
        ("import os; os.kill(os.getpid(), 11)", "CRASHED", "SIGSEGV"),
        ("\n    while True: pass", "TIMEOUT", "no answer within 1 s of its own work"),
    ],
)
@pytest.mark.slow
def test_a_death_is_told_and_the_next_worker_lives(worker, line, verdict, reason):
    dying = worker(HALF.format(line), "rotate_half", deadline=1.0)
    with pytest.raises(Died) as death:
        ask(dying)
    assert death.value.verdict == verdict
    assert reason in death.value.reason
    assert ask(worker(HALF.format("pass"), "rotate_half"))[1] == RIGHT


CLOSES = "import os, time; os.closerange(3, 64); time.sleep(600)"


def test_who_closes_its_socket_was_not_killed(worker):
    """The harness sends SIGKILL to what then still runs."""
    closing = worker(HALF.format(CLOSES), "rotate_half")
    with pytest.raises(Died, match="the process closed its socket"):
        ask(closing)
    assert (len(closing.deaths), closing.deaths.kills) == (1, [])


KILLS = HALF.format("import os; os.kill(os.getpid(), 9)")


@pytest.mark.slow
def test_a_kill_counts_where_nothing_else_runs(worker):
    """Beside others as many keep it from being run, until it is asked alone."""
    dying = worker(KILLS, "rotate_half")
    for reason in (*[r"^the process ended by SIGKILL$"] * 2, "not run again after 2"):
        with pytest.raises(Died, match=reason):
            ask(dying)
    assert (dying.deaths, len(dying.deaths.kills), dying.spent) == ([], 2, False)
    with dying.deaths.with_nothing_beside() as kills:
        for reason in (*["by SIGKILL, also with nothing beside it"] * 2, "not run again after 2"):
            with pytest.raises(Died, match=reason):
                ask(dying)
    assert (kills, dying.deaths.kills, dying.spent) == (dying.deaths, [], True)


def test_a_kill_that_decides_nothing_is_forgotten(worker):
    dying = worker(KILLS, "rotate_half")
    for how in (contextlib.nullcontext, dying.deaths.with_nothing_beside):
        with how() as kills, dying.deaths.uncounted(), pytest.raises(Died):
            ask(dying)
        assert (dying.deaths, dying.deaths.kills, kills or []) == ([], [], [])


def test_the_same_solution_is_started_again(worker, tmp_path):
    mark = tmp_path / "died once"
    line = f"import os; os.path.exists({str(mark)!r}) or (open({str(mark)!r}, 'w'), os.abort())"
    once = worker(HALF.format(line), "rotate_half")
    with pytest.raises(Died):
        ask(once)
    assert ask(once)[1] == RIGHT


@pytest.mark.slow
def test_after_two_deaths_it_is_not_run_again(worker, fork_server, monkeypatch):
    dying = worker(HALF.format("\n    while True: pass"), "rotate_half", deadline=0.5)
    for _ in range(2):
        with pytest.raises(Died):
            ask(dying)
    monkeypatch.setattr(fork_server, "fork", lambda: pytest.fail("it is run again"))
    with pytest.raises(Died, match="not run again after 2"):
        ask(dying)
    assert not dying.alive
