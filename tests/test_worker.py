"""A solution's own process: the contract held there, deadlines, crashes and new starts."""

from __future__ import annotations

import ctypes
import os
import time

import pytest

from common.arena import Arena, lay_out
from common.grading.worker import Died, Worker
from common.sandbox.landlock import landlock_version
from common.solutions import Solution


@pytest.fixture
def worker(fork_server, tmp_path):
    """Start workers from source texts, and end them."""
    started = []

    def start(source: str, op: str = "rope", deadline: float = 20.0) -> Worker:
        path = tmp_path / "somebody" / f"{op}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        started.append(Worker(fork_server, Solution(path, op), deadline))
        return started[-1]

    yield start
    for one in started:
        one.close()


def ask(worker: Worker):
    """Ask for a rotate_half of four numbers."""
    import torch

    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    slots = lay_out([("x", x), ("result", torch.empty(4, device="meta"))])
    arena = worker.arena(max(slot.end for slot in slots.values()))
    arena.tensor(slots["x"]).copy_(x)
    call = {
        "tensors": {"x": slots["x"].json()}, "optional": [], "options": {},
        "differentiable": ["x"], "changing": ["x"], "upstream": slots["x"].json(),
    }  # fmt: skip
    reply = worker.call("forward", call=call, result=slots["result"].json(), poison=None)
    return reply, arena.tensor(slots["result"]).tolist()


HALF = """
import torch

def rotate_half(x):
    {}
    a, b = x.chunk(2)
    return torch.cat((-b, a))
"""
RIGHT = [-3.0, -4.0, 1.0, 2.0]


def test_an_answer_lies_in_the_harnesss_memory(worker):
    reply, result = ask(worker(HALF.format("pass"), "rotate_half"))
    assert reply == {"shape": [4], "dtype": "float32", "differentiable": True}
    assert result == RIGHT


@pytest.mark.parametrize(
    ("signature", "reason"),
    [
        ("t, freqs", ""),
        ("t, freqs, **options", ""),
        ("t, freqs, tensor_format='sbhd', *, interleaved=False", ""),
        ("x, freqs", "another signature: rope(x, freqs) instead of rope(t, freqs, ...)"),
        ("t", "another signature: rope(t) instead of rope(t, freqs, ...)"),
        ("t, freqs, *, block=4", "rope has no option 'block'"),
        ("t, freqs, *, cp_size=2", "cp_size must be 1 unless given"),
        ("t, freqs, *, interleaved", "interleaved must be False unless given"),
    ],
)
def test_the_signature_is_held_against_the_ops(worker, signature, reason):
    reply = worker(f"def rope({signature}):\n    return t\n").call("nothing of the kind")
    if reason:
        assert reply["verdict"] == "COMPILE_ERROR"
        assert reason in reply["reason"]
    else:
        assert "signature" not in reply["reason"]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def rope(t, freqs:\n", "line 1 of rope.py"),
        ("import no_such_package\n", "No module named 'no_such_package', line 1 of rope.py"),
        ("def ropes(t, freqs): ...\n", "lacks a function named rope"),
        ("raise RuntimeError('at import')\n", "RuntimeError: at import, line 1 of rope.py"),
    ],
)
def test_what_does_not_import_says_why(worker, source, reason):
    reply = worker(source).call("forward")
    assert reply["verdict"] == "COMPILE_ERROR"
    assert reason in reply["reason"]


@pytest.mark.parametrize(
    ("line", "verdict", "reason"),
    [
        ("import os; os.abort()", "CRASHED", "SIGABRT"),
        ("import os; os._exit(0)", "CRASHED", "exit(0)"),
        ("import os; os.kill(os.getpid(), 11)", "CRASHED", "SIGSEGV"),
        ("\n    while True: pass", "TIMEOUT", "no answer within 1 s"),
    ],
)
def test_a_death_is_told_and_the_next_worker_lives(worker, line, verdict, reason):
    dying = worker(HALF.format(line), "rotate_half", deadline=1.0)
    with pytest.raises(Died) as death:
        ask(dying)
    assert death.value.verdict == verdict
    assert reason in death.value.reason
    assert ask(worker(HALF.format("pass"), "rotate_half"))[1] == RIGHT


def test_the_same_solution_is_started_again(worker, tmp_path):
    mark = tmp_path / "died once"
    line = f"import os; os.path.exists({str(mark)!r}) or (open({str(mark)!r}, 'w'), os.abort())"
    once = worker(HALF.format(line), "rotate_half")
    with pytest.raises(Died):
        ask(once)
    assert ask(once)[1] == RIGHT


def test_after_two_deaths_it_is_not_run_again(worker):
    dying = worker(HALF.format("\n    while True: pass"), "rotate_half", deadline=0.5)
    for _ in range(2):
        with pytest.raises(Died):
            ask(dying)
    start = time.monotonic()
    with pytest.raises(Died, match="not run again after 2"):
        ask(dying)
    assert time.monotonic() - start < 0.1


def test_what_it_prints_does_not_reach_the_reply(worker):
    line = "import os; print('x' * 100_000); os.write(1, b'{}\\n'); os.write(2, b'{}\\n')"
    assert ask(worker(HALF.format(line), "rotate_half"))[1] == RIGHT


def test_a_helper_stands_first_on_the_path(worker, tmp_path):
    source = "from {} import HALF\ndef rotate_half(x):\n    return x * HALF\n"
    started = worker(source.format("json"), "rotate_half")
    (tmp_path / "somebody" / "json.py").write_text("raise ImportError('shadowed')\n")
    assert "HALF" in ask(started)[0]["reason"], "what Python has loaded already stays itself"
    (tmp_path / "somebody" / "kernels.py").write_text("HALF = 0.5\n")
    other = worker(source.format("kernels"), "rotate_half")
    assert ask(other)[1] == [0.5, 1.0, 1.5, 2.0]
    assert not list((tmp_path / "somebody").glob("__pycache__")), "the folder stays as it was"


def test_memory_that_grows_is_mapped_anew(worker):
    started = worker(HALF.format("pass"), "rotate_half")
    assert ask(started)[1] == RIGHT
    started.arena(1 << 22)
    assert ask(started)[1] == RIGHT


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


def test_a_request_that_nobody_reads_has_a_deadline(worker):
    """The solution stops its process after the answer, so that the socket's buffer fills."""
    line = (
        "import os, subprocess, sys; subprocess.Popen(['sh', '-c',"
        " f'sleep 0.3; kill -STOP {os.getpid()}'])"
    )
    stopped = worker(HALF.format(line), "rotate_half", deadline=1.0)
    assert ask(stopped)[1] == RIGHT
    time.sleep(1.0)
    with pytest.raises(Died) as death:
        stopped.call("forward", call={"options": "x" * (8 << 20)}, result={}, poison=None)
    assert death.value.verdict == "TIMEOUT"


def can_confine() -> bool:
    """Landlock's version 6, of Linux 6.12, restricts signals."""
    return landlock_version(ctypes.CDLL(None)) >= 6


@pytest.mark.skipif(not can_confine(), reason="this kernel cannot confine a process")
@pytest.mark.parametrize(
    "reach",
    [
        "import os; os.kill(os.getppid(), 9)",
        f"open('/proc/{os.getpid()}/mem', 'rb')",
        f"open('/proc/{os.getpid()}/fd/0', 'rb')",
    ],
)
def test_a_worker_reaches_no_other_process(worker, reach):
    """The oracle's results are in the harness's memory, other solutions' answers in its files."""
    assert "PermissionError" in ask(worker(HALF.format(reach), "rotate_half"))[0]["reason"]


def _is_zombie(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "Z"


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
