"""How the deaths of a solution's processes are told."""

from __future__ import annotations

import pytest

from common.grading.worker import Died
from tests.support.asking import HALF, RIGHT, ask

KILLED = "the process ended by SIGKILL"


@pytest.mark.parametrize(
    ("line", "verdict", "reason"),
    [
        ("import os; os.abort()", "CRASHED", "SIGABRT"),
        ("import os; os._exit(0)", "CRASHED", "exit(0)"),
        ("import os; os.kill(os.getpid(), 11)", "CRASHED", "SIGSEGV"),
        ("import os; os.kill(os.getpid(), 9)", "CRASHED", KILLED),
        ("\n    while True: pass", "TIMEOUT", "no answer within 1 s of its own work"),
    ],
)
@pytest.mark.slow
def test_a_death_is_told_and_the_next_worker_lives(worker, line, verdict, reason):
    dying = worker(HALF.format(line), "rotate_half", deadline=1.0)
    with pytest.raises(Died) as death:
        ask(dying)
    assert death.value.verdict == verdict
    assert reason in death.value.reason and dying.deaths == 1
    assert ask(worker(HALF.format("pass"), "rotate_half"))[1] == RIGHT


CLOSES = "import os, time; os.closerange(3, 64); time.sleep(600)"


def test_who_closes_its_socket_was_not_killed(worker):
    """The harness sends SIGKILL to what then still runs."""
    closing = worker(HALF.format(CLOSES), "rotate_half")
    with pytest.raises(Died, match="the process closed its socket"):
        ask(closing)


def test_the_same_solution_is_started_again(worker, tmp_path):
    mark = tmp_path / "died once"
    line = f"import os; os.path.exists({str(mark)!r}) or (open({str(mark)!r}, 'w'), os.abort())"
    once = worker(HALF.format(line), "rotate_half")
    with pytest.raises(Died):
        ask(once)
    assert ask(once)[1] == RIGHT
