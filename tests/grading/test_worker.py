"""The harness's hold on a solution's process: deadlines, memory, what it left."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from common.arena import Arena, lay_out
from common.grading import channel
from common.grading import worker as workers_file
from common.grading.deaths import Died
from common.grading.worker import Worker
from tests.support.asking import HALF, RIGHT, ask


def test_an_answer_lies_in_the_harnesss_memory(worker):
    reply, result = ask(worker(HALF.format("pass"), "rotate_half"))
    assert reply == {"shape": [4], "dtype": "float32", "differentiable": True}
    assert result == RIGHT


def test_what_it_prints_does_not_reach_the_reply(worker):
    line = "import os; print('x' * 100_000); os.write(1, b'{}\\n'); os.write(2, b'{}\\n')"
    assert ask(worker(HALF.format(line), "rotate_half"))[1] == RIGHT


def test_memory_that_grows_is_mapped_anew(worker):
    started = worker(HALF.format("pass"), "rotate_half")
    assert ask(started)[1] == RIGHT
    started.arena(1 << 22)
    assert ask(started)[1] == RIGHT


def test_where_memory_runs_out_it_ends_before_the_harness(worker):
    started = worker(HALF.format("pass"), "rotate_half")
    ask(started)
    first, harness = (
        int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (started.pid, os.getpid())
    )
    assert first == 1000 >= harness


def alive(pid: int) -> bool:
    for _ in range(100):
        if not os.path.exists(f"/proc/{pid}") or _is_zombie(pid):
            return False
        time.sleep(0.05)
    return True


def test_what_a_worker_started_ends_with_it(worker, tmp_path):
    """Also a process that left its session and its parent."""
    note = tmp_path / "pid"
    line = (
        "import os, time\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n"
        f"            open({str(note)!r}, 'w').write(str(os.getpid()))\n"
        "            time.sleep(600)\n        os._exit(0)\n"
        f"    while not os.path.exists({str(note)!r}) or not open({str(note)!r}).read(): pass"
    )
    leaving = worker(HALF.format(line), "rotate_half")
    assert ask(leaving)[1] == RIGHT
    assert not _is_zombie(int(note.read_text()))
    leaving.close()
    assert not alive(int(note.read_text()))


def test_memory_has_a_ceiling(worker, monkeypatch):
    line = "held = bytearray(300 << 20); import time; time.sleep(60)"
    monkeypatch.setattr("common.grading.channel.LARGEST_MEMORY", 200 << 20)
    with pytest.raises(Died, match=r"it held [0-9]+ MiB, 200 are allowed") as death:
        ask(worker(HALF.format(line), "rotate_half"))
    assert death.value.verdict == "CRASHED"


@pytest.mark.parametrize(
    "line",
    [
        "import time; time.sleep(1.5)",
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'sum(range(60_000_000))'])",
    ],
    ids=["waits", "waits for a child at work"],
)
def test_only_its_own_work_counts(worker, line):
    """Neither a compiler that it waits for nor a machine that others use costs it anything."""
    assert ask(worker(HALF.format(line), "rotate_half", deadline=0.5))[1] == RIGHT


@pytest.mark.parametrize("deadline", [30.0, 0.3])
def test_threads_do_not_shorten_the_deadline(monkeypatch, deadline):
    """Many of them use a processor time beyond the deadline within less of the wall clock's."""
    times = itertools.count(step=1000)
    monkeypatch.setattr(channel, "processor_time", lambda pid: next(times))
    ours, theirs = socket.socketpair()
    later = threading.Timer(1.0, lambda: theirs.sendall(theirs.recv(1 << 20)))
    later.start()
    expected = contextlib.nullcontext() if deadline > 1 else pytest.raises(TimeoutError)
    with expected:
        assert channel.Channel(ours, os.getpid()).ask({"right": 1}, deadline) == {"right": 1}
    later.join()


def test_an_answer_counts_though_its_process_has_ended(monkeypatch):
    """It may answer and end before the harness goes on after sending."""
    ours, theirs = socket.socketpair()
    send = socket.send_fds

    def send_and_be_slow(*message):
        sent = send(*message)
        theirs.sendall(theirs.recv(1 << 20))
        theirs.close()
        return sent

    monkeypatch.setattr(socket, "send_fds", send_and_be_slow)
    assert channel.Channel(ours, os.getpid()).ask({"right": 1}, 1.0) == {"right": 1}


@pytest.mark.parametrize(
    "line",
    [
        "import time; time.sleep(60)",
        "import os, time\n    while True:\n        time.sleep(0.05)\n"
        "        [os.write(fd, b' ') for fd in range(3, 20) if _is_socket(fd)]",
    ],
    ids=["sleeps", "writes a byte now and then"],
)
def test_waiting_has_an_end(worker, line, monkeypatch):
    monkeypatch.setattr("common.grading.channel.LONGEST", 1.0)
    source = "import os, stat\ndef _is_socket(fd):\n    try:\n" + (
        "        return stat.S_ISSOCK(os.fstat(fd).st_mode)\n    except OSError:\n"
        "        return False\n"
    )
    start = time.monotonic()
    with pytest.raises(Died, match=r"no answer within 1 s$"):
        ask(worker(source + HALF.format(line), "rotate_half", deadline=0.5))
    assert time.monotonic() - start < 20


def test_a_request_that_nobody_reads_has_a_deadline(worker, monkeypatch):
    """The solution stops its process after the answer, so that the socket's buffer fills."""
    line = (
        "import os, subprocess, sys; subprocess.Popen(['sh', '-c',"
        " f'sleep 0.3; kill -STOP {os.getpid()}'])"
    )
    stopped = worker(HALF.format(line), "rotate_half", deadline=0.5)
    assert ask(stopped)[1] == RIGHT
    time.sleep(1.0)
    monkeypatch.setattr("common.grading.channel.LONGEST", 1.0)
    with pytest.raises(Died) as death:
        stopped.call("forward", call={"options": "x" * (8 << 20)}, result={}, poison=None)
    assert death.value.verdict == "TIMEOUT"


def _is_zombie(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "Z"


def test_an_empty_tensor_lies_where_the_arena_does():
    """Also where a solution has set torch's default device."""
    import torch

    empty = torch.empty(0, 3)
    slot = lay_out([("empty", empty)])["empty"]
    arena = Arena("cpu", slot.end)
    with torch.device("meta"):
        seen = arena.tensor(slot)
    arena.close()
    assert seen.device.type == "cpu" and seen.shape == empty.shape


def test_a_view_stays_the_view_it_was(tmp_path):
    import torch

    base = torch.arange(24.0).view(4, 6)
    for view in (base[:, 1:4], base.T, base[::2, ::3], base[1:1], base.flatten()[3:]):
        slots = lay_out([("view", view)])
        arena = Arena("cpu", slots["view"].end)
        arena.bytes_of(slots["view"]).copy_(base.view(-1).view(torch.uint8))
        seen = arena.tensor(slots["view"])
        assert torch.equal(seen, view)
        assert seen.stride() == view.stride()
        del seen
        arena.close()


# --- shared memory --------------------------------------------------------------------------------


@pytest.fixture
def lent(monkeypatch):
    """As if each mapping had a counter, as on a GPU; return those that were taken back."""
    taken, ticket = [], Arena.ticket

    def counted(arena):
        arena.lent.append((b"counter", id(arena)))
        return ticket(arena)

    monkeypatch.setattr(Arena, "ticket", counted)

    def reclaim(several):
        taken.extend(several)
        several.clear()

    monkeypatch.setattr(workers_file, "reclaim", reclaim)
    return taken


def test_what_a_process_gave_back_is_not_taken_back_again(worker, lent):
    started = worker(HALF.format("pass"), "rotate_half")
    assert ask(started)[1] == RIGHT
    started.release()
    started.renew()
    assert not lent


def test_what_an_ended_process_had_mapped_is_taken_back(worker, lent):
    started = worker(HALF.format("pass"), "rotate_half")
    assert ask(started)[1] == RIGHT
    arena = started._arena
    started.renew()
    assert [place for _, place in lent] == [id(arena)]


def test_what_a_solution_keeps_is_taken_back_at_its_end(worker, lent, monkeypatch):
    monkeypatch.setattr(Worker, "_exchange", without_giving_back(Worker._exchange))
    started = worker(HALF.format("pass"), "rotate_half")
    assert ask(started)[1] == RIGHT
    started.release()
    assert not lent
    started.renew()
    assert len(lent) == 1


def without_giving_back(exchange):
    def changed(self, message, fds=()):
        reply = exchange(self, message, fds)
        if message["request"] == "arena":
            reply["given_back"] = False
        return reply

    return changed


def test_each_start_end_and_new_memory_is_counted(worker):
    started = worker(HALF.format("pass"), "rotate_half")
    assert ask(started)[1] == RIGHT
    seen = [started.changes]
    for change in (started.release, started.renew, lambda: ask(started)):
        change()
        seen.append(started.changes)
    assert seen == sorted(set(seen)), "each changes it"
    assert ask(started)[1] == RIGHT
    assert started.changes == seen[-1], "a call does not"
