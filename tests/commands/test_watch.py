"""`study check --watch`: each save is graded, what failed last first, until Ctrl-C."""

from __future__ import annotations

import argparse
import os
import queue
import signal
import subprocess
import sys
import threading
import time

import pytest

from common.commands import check, watch
from common.grading import known
from common.grading.compiling import Compiler
from common.grading.fork_server import ForkServer, ServerEnded
from common.solutions import discover, select
from tests.support.study import RIGHT, WRONG, one_line

HANGS = RIGHT.replace("    x1, x2", "    while True:\n        pass\n    x1, x2")
WIDE = RIGHT.replace(
    "import torch",
    """import torch
import triton

@triton.jit
def kernel(x):
    pass
""",
).replace("    x1, x2", "    kernel[(1,)](x.detach(), num_warps=64)\n    x1, x2")
HELPED = "from helper import SIGN\n" + RIGHT.replace("-x2", "SIGN * x2")


@pytest.fixture(scope="module")
def server():
    server = ForkServer("cpu")
    yield server
    server.close()


class Watched:
    """A folder, the rounds over it as a fake watcher starts them, and what they print."""

    def __init__(self, root, server, capsys, device):
        self.folder, self.capsys, self.saves = root / "alice", capsys, queue.SimpleQueue()
        self.folder.mkdir()
        options = argparse.Namespace(only="alice", verbose=False, picture=False, memory=None)
        self.compiler = Compiler(device)
        self.watch = watch.Watch(
            server, self.compiler, lambda: select(discover(root), None, "alice"), options
        )

    def save(self, name, text):
        """Save a file, or delete it where there is no text."""
        path = self.folder / name
        path.unlink() if text is None else path.write_text(text)
        self.saves.put({path})

    def round(self):
        """Grade the folder as it is; return the lines."""
        self.watch._round()
        return self.capsys.readouterr().out.splitlines()


@pytest.fixture
def alice(tmp_path, server, capsys):
    """Return a watched folder whose kernels are not compiled."""
    server.resume()
    return Watched(tmp_path, server, capsys, "cuda")


def test_what_does_not_compile_fails_and_is_mended(tmp_path, server, capsys, monkeypatch):
    monkeypatch.setattr(known, "CACHE", tmp_path / ".cache")
    server.resume()
    alice = Watched(tmp_path, server, capsys, "cpu")
    with alice.compiler:
        alice.save("rotate_half.py", WIDE)
        lines = alice.round()
        assert lines[0].endswith(": PASSED")
        assert any(line.endswith(": COMPILE_ERROR, PASSED in the interpreter") for line in lines)
        assert lines[-1].endswith("The next save is graded from the failures on.")
        alice.save("rotate_half.py", WIDE.replace("64", "4"))
        alice.compiler.renew()
        assert "mended" in alice.round()[-1]
        assert alice.watch.passes


def test_what_passes_says_so_at_once_and_what_to_do_next(alice):
    alice.save("rotate_half.py", RIGHT)
    lines = alice.round()
    assert lines[0].endswith(": PASSED")
    assert "alice/rotate_half, smoke: " in lines[1]
    assert lines[-1].endswith("All that is answered is right. Next: nox -s check -- alice")
    assert alice.watch.passes


def test_what_failed_last_is_asked_first_and_forgotten_once_it_passes(alice, monkeypatch):
    asked = []
    graded = check.smoke
    monkeypatch.setattr(check, "smoke", lambda *args: asked.append(args[-1]) or graded(*args))
    alice.save("rotate_half.py", WRONG)
    lines = alice.round()
    assert "INCORRECT_NUMERICAL" in lines[0]
    assert lines[-1].endswith("The next save is graded from the failures on.")
    assert not alice.watch.passes
    failed = set(alice.watch._failed)
    assert failed and {name for name, _ in failed} == {"alice/rotate_half"}
    alice.save("rotate_half.py", RIGHT)
    lines = alice.round()
    assert asked == [frozenset(), failed]
    assert lines[0] in {f"{name} {case}: PASSED" for name, case in failed}
    assert f"{len(failed)} of them mended" in lines[-1]
    assert not alice.watch._failed


def test_a_helper_is_loaded_anew(alice):
    alice.save("rotate_half.py", HELPED)
    alice.save("helper.py", "SIGN = 1\n")
    alice.round()
    assert not alice.watch.passes
    alice.save("helper.py", "SIGN = -1\n")
    alice.round()
    assert alice.watch.passes


def test_a_syntax_error_is_one_line(alice):
    alice.save("rotate_half.py", RIGHT)
    alice.save("helper.py", "SIGN = (\n")
    assert alice.round() == ["alice/helper.py, line 1: SyntaxError: '(' was never closed"]
    assert not alice.watch.passes
    alice.save("helper.py", "SIGN = '\0'\n")
    (line,) = alice.round()
    assert "null bytes" in line


def test_an_editors_lock_is_no_broken_file(alice):
    alice.save("rotate_half.py", RIGHT)
    (alice.folder / ".#rotate_half.py").symlink_to("alice@host.1234:1700000000")
    alice.round()
    assert alice.watch.passes


def test_files_come_and_go(alice):
    (line,) = alice.round()
    assert line.startswith("study: ")
    alice.save("rotate_half.py", RIGHT)
    alice.round()
    assert alice.watch.passes
    alice.save("rotate_half_other.py", WRONG)
    lines = alice.round()
    assert any(line.startswith("alice/rotate_half_other, smoke: ") for line in lines)
    assert any(line.startswith("alice/rotate_half, smoke: ") for line in lines)
    alice.save("rotate_half_other.py", None)
    alice.round()
    assert alice.watch.passes


def test_what_answers_nothing_is_not_called_right(alice):
    alice.save("rotate_half.py", "def rotate_half(x):\n    raise NotImplementedError('tomorrow')\n")
    assert alice.round()[-1].endswith("Nothing is wrong, but no case is answered yet.")


def test_a_save_ends_the_round_under_way_even_where_a_kernel_hangs(alice):
    """What hangs would be waited for until its deadline, of 20 s."""
    alice.save("rotate_half.py", HANGS)
    followed = threading.Thread(target=alice.watch.follow, args=[iter(alice.saves.get, None)])
    alice.saves.get()
    followed.start()
    time.sleep(2)
    start = time.monotonic()
    alice.save("rotate_half.py", RIGHT)
    alice.saves.put(None)
    followed.join(60)
    assert time.monotonic() - start < 15
    out = alice.capsys.readouterr().out
    assert alice.watch.passes, out
    assert "CRASHED" not in out and "TIMEOUT" not in out
    assert "saved: rotate_half.py" in out


def test_a_watch_that_ends_by_an_error_raises_it(alice):
    def fails():
        raise OSError(28, "no space left for a watch")
        yield

    with pytest.raises(OSError, match="no space left"):
        alice.watch.follow(fails())


def test_an_interrupted_server_forks_nothing_until_it_resumes(server):
    _, pid, ours = server.fork()
    server.interrupt()
    assert ours.recv(1) == b"", "its process is dead"
    with pytest.raises(ServerEnded):
        server.fork()
    server.resume()
    assert server.reap(server._process.pid, pid) == -signal.SIGKILL
    number, other, again = server.fork()
    server.interrupt()
    server.resume()
    assert server.reap(number, other) == -signal.SIGKILL
    ours.close()
    again.close()


# --- the command ----------------------------------------------------------------------------------


def test_ctrl_c_ends_it_with_the_state_of_the_last_round(study, repository, by_hand):
    by_hand("watched", RIGHT)
    process = subprocess.Popen(
        [sys.executable, "-m", "common", "check", "watched", "--watch"],
        cwd=repository,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def until(words):
        for line in process.stdout:
            if words in line:
                return line
        raise AssertionError(process.stderr.read())

    until("Next: nox -s check -- watched")
    start = time.monotonic()
    (repository / "contributors" / "watched" / "rotate_half.py").write_text(WRONG)
    until("INCORRECT_NUMERICAL")
    print(f"the first answer came {time.monotonic() - start:.1f} s after the save")
    until("The next save is graded")
    (repository / "contributors" / "watched" / "rotate_half.py").write_text(RIGHT)
    until("Next: nox -s check -- watched")
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0
    assert "Traceback" not in process.stderr.read()


def test_ctrl_c_amid_a_hanging_round_ends_it_with_1(repository, by_hand):
    by_hand("hanging", HANGS)
    process = subprocess.Popen(
        [sys.executable, "-m", "common", "check", "hanging", "--watch"],
        cwd=repository,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline().startswith("Watching contributors/hanging: ")
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert not errors


def test_without_watchfiles_there_is_one_line(study):
    line = one_line(study("check", "house", "--watch", hidden="watchfiles"))
    assert "package watchfiles is missing" in line


def test_a_handle_without_a_folder_is_a_mistake(study):
    ran = study("check", "nobody", "--watch")
    assert ran.code == 2
    assert "nobody" in ran.err
