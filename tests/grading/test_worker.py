"""The harness's hold on a solution's process: deadlines, memory, what it left."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from common import wire
from common.arena import Arena, end_of, lay_out
from common.grading import worker as workers_file
from common.grading.worker import Worker
from tests.support.processes import alive, answer, ends, state
from tests.support.waiting import wait_until
from tests.support.workers import HALF, RIGHT, ask


def test_an_answer_lies_in_the_harnesss_memory(worker):
    reply, result = ask(worker(HALF.format("pass"), "rotate_half"))
    launched = reply.pop(wire.LAUNCHED)
    assert reply == {"shape": [4], "dtype": "float32", "differentiable": True}
    assert launched == {"count": 0, "caught": {}}
    assert result == RIGHT


KILLED = "the process ended by SIGKILL"


@pytest.mark.parametrize(
    ("line", "verdict", "reason"),
    [
        ("import os; os.abort()", "CRASHED", "SIGABRT"),
        ("import os; os._exit(0)", "CRASHED", "exit(0)"),
        ("import os; os.kill(os.getpid(), 11)", "CRASHED", "SIGSEGV"),
        ("import os; os.kill(os.getpid(), 9)", "CRASHED", KILLED),
        ("\n    while True: pass", "TIMEOUT", "its own work: it was at line 6 of"),
    ],
)
@pytest.mark.slow
def test_a_death_is_told_and_the_next_worker_lives(worker, line, verdict, reason):
    dying = worker(HALF.format(line), "rotate_half", deadline=1.0)
    reply, _ = ask(dying)
    assert reply["verdict"] == verdict
    assert reason in reply["reason"] and dying.crashes == 1
    assert ask(worker(HALF.format("pass"), "rotate_half"))[1] == RIGHT


@pytest.mark.slow
def test_a_late_process_is_told_once_with_its_line_and_may_still_answer(worker, monkeypatch):
    places = []
    monkeypatch.setattr("common.grading.worker.LATE", 0.2)
    line = "import time; end = time.process_time() + 1.5\n    while time.process_time() < end: pass"
    late = worker(HALF.format(line), "rotate_half", late=lambda one: places.append(one.place))
    assert ask(late)[1] == RIGHT
    (place,) = places
    assert str(place) == "line 6 of rotate_half.py"
    quick = worker(HALF.format("pass"), "rotate_half", late=lambda one: places.append("late"))
    assert ask(quick)[1] == RIGHT and len(places) == 1


def test_what_it_prints_does_not_reach_the_reply(worker):
    line = "import os; print('x' * 100_000); os.write(1, b'{}\\n'); os.write(2, b'{}\\n')"
    assert ask(worker(HALF.format(line), "rotate_half"))[1] == RIGHT


def test_where_memory_runs_out_it_ends_before_the_harness(worker):
    started = worker(HALF.format("pass"), "rotate_half")
    ask(started)
    first, harness = (
        int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (started.pid, os.getpid())
    )
    assert first == 1000 >= harness


def test_what_a_worker_started_ends_with_it(worker, tmp_path):
    """Also a process that left its session and its parent."""
    note = tmp_path / "pid"
    line = (
        "import os, time\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n"
        f"            open({str(note)!r}, 'w').write(str(os.getpid()))\n"
        "            time.sleep(600)\n        os._exit(0)\n"
        f"    while not os.path.exists({str(note)!r}) or not open({str(note)!r}).read():\n"
        "        time.sleep(0.01)"
    )
    leaving = worker(HALF.format(line), "rotate_half")
    assert ask(leaving)[1] == RIGHT
    assert alive(int(note.read_text()))
    leaving.close()
    assert ends(int(note.read_text()))


@pytest.mark.parametrize(
    "line",
    [
        "import time; time.sleep(1.5)",
        "import subprocess, sys; subprocess.run([sys.executable, '-c',"
        " 'import time\\nwhile time.process_time() < 1.5: pass'])",
    ],
    ids=["waits", "waits for a child at work"],
)
@pytest.mark.slow
def test_only_its_own_work_counts(worker, line):
    """Neither a compiler that it waits for nor a machine that others use costs it anything."""
    assert ask(worker(HALF.format(line), "rotate_half", deadline=1.0))[1] == RIGHT


@pytest.mark.parametrize("waited", [29.0, 31.0])
@pytest.mark.slow
def test_threads_do_not_shorten_the_deadline(monkeypatch, waited):
    """Many of them use a processor time beyond the deadline within less of the wall clock's."""
    now, looks = [0.0], []
    ours, theirs = socket.socketpair()

    def processor_time(pid):
        """The threads' work; the seconds pass in the first poll, and in the second it replies."""
        looks.append(1000.0 * len(looks))
        if len(looks) == 2:
            now[0] = waited
        elif len(looks) == 3:
            answer(theirs)
        return looks[-1]

    monkeypatch.setattr(workers_file, "processor_time", processor_time)
    monkeypatch.setattr(workers_file, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(workers_file, "POLL", 0.01)
    expected = contextlib.nullcontext() if waited < 30 else pytest.raises(TimeoutError)
    with expected:
        assert workers_file.answer_of(ours, os.getpid(), wire.RunCalls(), 30.0).reply == {
            "right": 1
        }
    assert len(looks) == 3


def test_an_answer_counts_though_its_process_has_ended(monkeypatch):
    """It may answer and end before the harness goes on after sending."""
    ours, theirs = socket.socketpair()
    send = socket.send_fds

    def send_and_be_slow(*message):
        sent = send(*message)
        monkeypatch.undo()
        answer(theirs)
        theirs.close()
        return sent

    monkeypatch.setattr(socket, "send_fds", send_and_be_slow)
    assert workers_file.answer_of(ours, os.getpid(), wire.RunCalls(), 1.0).reply == {"right": 1}


@pytest.mark.parametrize(
    "line",
    [
        "import time; time.sleep(600)",
        "import os, time\n    while True:\n        time.sleep(0.05)\n"
        "        [os.write(fd, b' ') for fd in range(3, 20) if _is_socket(fd)]",
    ],
    ids=["sleeps", "writes a byte now and then"],
)
@pytest.mark.slow
def test_waiting_has_an_end(worker, line, monkeypatch):
    source = "import os, stat\ndef _is_socket(fd):\n    try:\n" + (
        "        return stat.S_ISSOCK(os.fstat(fd).st_mode)\n    except OSError:\n"
        "        return False\n"
    )
    waiting = worker(source + HALF.format(line), "rotate_half")
    assert waiting.ask(wire.RunCalls()) == {}
    hurried = vars(time) | {"monotonic": lambda: 100 * time.monotonic()}
    monkeypatch.setattr(workers_file, "time", SimpleNamespace(**hurried))
    reason = ask(waiting)[0]["reason"]
    assert re.match(rf"no answer within {workers_file.LONGEST:g} s(: it was at|$)", reason)


@pytest.mark.slow
def test_a_request_that_nobody_reads_has_a_deadline(worker, monkeypatch, tmp_path):
    """The solution stops its process after the answer, so that the socket's buffer fills."""
    answered = tmp_path / "answered"
    line = (
        "import os, subprocess, sys; subprocess.Popen(['sh', '-c',"
        f" f'until [ -e {answered} ]; do sleep 0.05; done; kill -STOP {{os.getpid()}}'])"
    )
    stopped = worker(HALF.format(line), "rotate_half", deadline=0.5)
    assert ask(stopped)[1] == RIGHT
    answered.touch()
    assert wait_until(lambda: state(stopped.pid) == "T")
    monkeypatch.setattr("common.grading.worker.LONGEST", 1.0)
    late = stopped.ask(wire.Forward(call={"options": "x" * (8 << 20)}, result={}))
    assert late["verdict"] == "TIMEOUT"


def test_a_view_stays_the_view_it_was():
    base = torch.arange(24.0).view(4, 6)
    for view in (base[:, 1:4], base.T, base[::2, ::3], base[1:1], base.flatten()[3:]):
        slots = lay_out([("view", view)])
        arena = Arena("cpu", end_of(slots["view"]))
        arena.bytes_of(slots["view"]).copy_(base.view(-1).view(torch.uint8))
        seen = arena.tensor(slots["view"])
        assert torch.equal(seen, view)
        assert seen.stride() == view.stride()
        del seen
        arena.close()


# --- shared memory --------------------------------------------------------------------------------


@pytest.fixture
def reclaimed(monkeypatch):
    """As if each mapping had a counter, as on a GPU; return those that were taken back."""
    taken, ticket = [], Arena.ticket

    def counted(arena):
        arena.counters.append((b"counter", id(arena)))
        return ticket(arena)

    monkeypatch.setattr(Arena, "ticket", counted)

    def reclaim(several):
        taken.extend(several)
        several.clear()

    monkeypatch.setattr(workers_file, "reclaim", reclaim)
    return taken


def test_what_a_solution_keeps_is_taken_back_at_its_end(worker, reclaimed, monkeypatch):
    monkeypatch.setattr(Worker, "_exchange", without_giving_back(Worker._exchange))
    started = worker(HALF.format("pass"), "rotate_half")
    assert ask(started)[1] == RIGHT
    started.release()
    assert not reclaimed
    started.end_process()
    assert len(reclaimed) == 1


def without_giving_back(execution):
    def changed(self, request, fds=()):
        reply = execution(self, request, fds)
        if isinstance(request, wire.Share):
            reply["given_back"] = False
        return reply

    return changed


def test_each_start_end_and_new_memory_is_counted(worker):
    started = worker(HALF.format("pass"), "rotate_half")
    assert ask(started)[1] == RIGHT
    seen = [started.changes]
    for change in (started.release, started.end_process, lambda: ask(started)):
        change()
        seen.append(started.changes)
    assert seen == sorted(set(seen)), "each changes it"
    assert ask(started)[1] == RIGHT
    assert started.changes == seen[-1], "a call does not"
