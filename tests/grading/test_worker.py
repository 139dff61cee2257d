"""The harness's hold on a solution's process: deadlines, memory, what it left."""

import os
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from common import wire
from common.grading import worker as workers_file
from common.timed_requests import RunCalls
from tests.support.processes import alive, ends, state
from tests.support.switches import solution_text
from tests.support.waiting import wait_until
from tests.support.workers import HALF, RIGHT, ask


def test_an_answer_lies_in_the_harnesss_memory(worker):
    reply, result = ask(worker(HALF.format("pass"), "rotate_half"))
    launched = reply.pop(wire.LAUNCHED)
    assert reply == {"output": {"shape": [4], "dtype": "float32", "differentiable": True}}
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
        ("\n    while True: pass", "TIMEOUT", "its own work, line 6 of"),
    ],
)
@pytest.mark.slow
def test_a_death_is_told_and_the_next_worker_lives(worker, line, verdict, reason):
    dying = worker(HALF.format(line), "rotate_half", deadline=1.0)
    reply, _ = ask(dying)
    assert reply["verdict"] == verdict
    assert reason in reply["reason"] and dying.ends == 1
    assert ask(worker(HALF.format("pass"), "rotate_half"))[1] == RIGHT


BUSY = "import time; end = time.process_time() + 1.5\n    while time.process_time() < end: pass"


@pytest.mark.slow
@pytest.mark.parametrize("line", [BUSY, "import time\n    time.sleep(2)"])
def test_a_late_process_is_told_once_with_its_line_and_may_answer(worker, monkeypatch, line):
    places = []
    monkeypatch.setattr("common.grading.worker.LATE", 0.2)
    for each in (line, "pass"):
        one = worker(HALF.format(each), "rotate_half")
        one.late = lambda one=one: places.append(str(one.place))
        assert ask(one)[1] == RIGHT
    assert places == ["line 6 of rotate_half.py"]


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
    assert waiting.ask(RunCalls()) == {}
    hurried = vars(time) | {"monotonic": lambda: 100 * time.monotonic()}
    monkeypatch.setattr(workers_file, "time", SimpleNamespace(**hurried))
    reason = ask(waiting)[0]["reason"]
    assert re.match(rf"no answer within {workers_file.LONGEST:g} s(, line|$)", reason)


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
    late = stopped.ask(wire.Forward(call={"options": "x" * (8 << 20)}, results={}))
    assert late["verdict"] == "TIMEOUT"


@pytest.mark.parametrize(
    "first",
    ["os.environ['TRITON_INTERPRET'] = '0'", "knobs.runtime.interpret = False",
     "driver.set_active(Everything())", "os.environ['CUDA_VISIBLE_DEVICES'] = '0'"],
)  # fmt: skip
def test_a_kernel_is_interpreted_whatever_its_file_sets(worker, first):
    source = solution_text(first=first, width="4")
    assert ask(worker(source, "rotate_half"))[1] == [-1.0, -2.0, -3.0, -4.0]
