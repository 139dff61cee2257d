"""`study check --watch`: each save is graded, what failed last first, until Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import queue
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from common import disk_cache
from common.commands import check, smoke, watch
from common.errors import ServerEnded
from common.grading import worker
from common.grading.compiling import Compiler
from common.grading.fork_server import ForkServer
from common.solutions import discover, select
from tests.support.boards import failed, row
from tests.support.study import RIGHT, WRONG, environment, one_line
from tests.support.waiting import LONGEST, wait_until

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


def hangs(mark):
    """A solution that makes this file once it is called, and then never ends."""
    lines = f"    open({str(mark)!r}, 'w').close()\n    while True:\n        pass\n"
    return RIGHT.replace("    x1, x2", f"{lines}    x1, x2")


class Watched:
    """A folder, the rounds over it as a fake watcher starts them, and what they print."""

    def __init__(self, root, server, capsys, device, case=None):
        self.folder, self.capsys, self.saves = root / "alice", capsys, queue.SimpleQueue()
        self.folder.mkdir()
        options = argparse.Namespace(
            only="alice", verbose=False, picture=False, memory=None, case=case, exitfirst=False
        )
        self.compiler = Compiler(device)
        self.watch = watch.Watch(
            server,
            self.compiler,
            lambda: select(discover(root), None, "alice"),
            options,
            check.measure_board,
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


@pytest.mark.slow
def test_what_does_not_compile_fails_and_is_mended(tmp_path, server, capsys, monkeypatch):
    monkeypatch.setattr(disk_cache, "CACHE", tmp_path / ".cache")
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


@pytest.mark.slow
def test_what_passes_says_so_at_once_and_what_to_do_next(alice):
    """An editor's lock is no broken file."""
    (alice.folder / ".#rotate_half.py").symlink_to("alice@host.1234:1700000000")
    alice.save("rotate_half.py", RIGHT)
    lines = alice.round()
    assert lines[0].endswith(": PASSED")
    assert "alice/rotate_half, smoke: " in lines[1]
    told = r"All that is answered is right, in \d+ of \d+ cases; \d+ not supported: interleaved"
    noted = r"; but no Triton kernel was launched, torch answered \(\d+ cases\)"
    assert re.search(rf"{told}{noted}\. Next: nox -s check -- alice$", lines[-1]), lines[-1]
    assert alice.watch.passes


@pytest.mark.slow
def test_what_failed_last_is_asked_first_and_forgotten_once_it_passes(alice, monkeypatch):
    asked = []
    graded = smoke.grade_smoke_cases
    monkeypatch.setattr(
        smoke,
        "grade_smoke_cases",
        lambda *args, **options: asked.append(args[3]) or graded(*args, **options),
    )
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


@pytest.mark.slow
def test_a_case_of_the_board_is_measured_and_no_other(tmp_path, server, capsys):
    server.resume()
    case = "8x2x32x128-bfloat16-twin"
    alice = Watched(tmp_path, server, capsys, "cuda", case)
    alice.save("rotate_half.py", RIGHT)
    assert alice.round() == [
        "alice/rotate_half, board: 1 PASSED of 1 case",
        "    note: no Triton kernel was launched, torch answered (1 case)",
        "Nothing is timed without a GPU.",
    ]
    assert alice.watch.passes
    alice.save("rotate_half.py", WRONG)
    assert f"alice/rotate_half {case} forward: INCORRECT_NUMERICAL" in alice.round()[0]
    assert not alice.watch.passes


def test_times_stand_beside_the_last_and_the_best():
    def lines(us, **fields):
        return times.lines([row(us=us, eager=90.0, copy=30.0, **fields)])

    times = watch.Times()
    head, first = lines(50.0)
    assert head.split()[-5:] == ["now", "last", "best", "eager", "limit"]
    assert first.split()[1:] == ["forward", "50.0", "-", "50.0", "90.0", "30.0", "60%"]
    assert lines(40.0)[1].split()[2:] == ["40.0", "50.0", "-20%", "40.0", "90.0", "30.0", "75%"]
    assert lines(44.0)[1].split()[2:6] == ["44.0", "40.0", "+10%", "40.0"]
    assert "with backward" in lines(44.0, direction="backward")[1]
    assert all(len(line) <= 80 for line in lines(44.0, case="8192x2x32x128-bfloat16"))


def test_what_was_not_timed_has_no_line():
    assert watch.Times().lines([failed("alice/rope")]) == []


def test_a_syntax_error_is_one_line(alice):
    alice.save("rotate_half.py", RIGHT)
    alice.save("helper.py", "SIGN = (\n")
    assert alice.round() == ["alice/helper.py, line 1: SyntaxError: '(' was never closed"]
    assert not alice.watch.passes
    alice.save("helper.py", "SIGN = '\0'\n")
    (line,) = alice.round()
    assert "null bytes" in line


@pytest.mark.slow
def test_files_come_and_go_and_a_helper_is_loaded_anew(alice):
    (line,) = alice.round()
    assert line.startswith("study: ")
    alice.save("rotate_half.py", HELPED)
    alice.save("helper.py", "SIGN = 1\n")
    alice.round()
    assert not alice.watch.passes
    alice.save("helper.py", "SIGN = -1\n")
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


@pytest.mark.slow
def test_a_save_ends_the_round_under_way_even_where_a_kernel_hangs(alice, tmp_path, monkeypatch):
    """What hangs would be waited for until its deadline, which does not come here."""
    monkeypatch.setitem(worker.DEADLINE, "cpu", 100 * LONGEST)
    alice.save("rotate_half.py", hangs(tmp_path / "called"))
    alice.saves.get()
    saves = iter(alice.saves.get, None)  # without an end, as those of a folder
    followed = threading.Thread(target=alice.watch.follow, args=[saves], daemon=True)
    followed.start()
    assert wait_until((tmp_path / "called").exists)
    alice.save("rotate_half.py", RIGHT)
    wait_until(lambda: alice.watch.passes)
    alice.watch.end()
    followed.join(LONGEST)
    assert not followed.is_alive()
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


@pytest.fixture
def command(repository):
    """Start `check --watch` of a folder, and kill it where a test did not end it.

    Return the process, and a function that says whether a line with these words comes.
    """
    started = []

    def command(handle):
        process = subprocess.Popen(
            [sys.executable, "-m", "common", "check", handle, "--watch"],
            cwd=repository,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        lines = queue.SimpleQueue()

        def read():
            for line in process.stdout:
                lines.put(line)
            lines.put("")

        def says(words, seconds=LONGEST):
            while line := lines.get(timeout=seconds):
                if words in line:
                    return True
            return False

        threading.Thread(target=read, daemon=True).start()
        return process, says

    yield command
    for each in started:
        each.kill()


def interrupted(process):
    """Press Ctrl-C; return the exit code and what stands on stderr."""
    process.send_signal(signal.SIGINT)
    return process.wait(LONGEST), process.stderr.read()


@pytest.mark.slow
def test_ctrl_c_ends_it_with_the_state_of_the_last_round(command, repository, by_hand):
    by_hand("watched", RIGHT)
    process, says = command("watched")

    def save(text):
        """Put another file in the solution's place, which is one change, until that is seen."""
        new = repository.parent / "watched.py"
        new.write_text(text)
        new.replace(repository / "contributors" / "watched" / "rotate_half.py")
        with contextlib.suppress(queue.Empty):
            return says("saved: rotate_half.py", LONGEST / 10)

    assert says("Next: nox -s check -- watched")
    assert wait_until(lambda: save(WRONG))
    assert says("INCORRECT_NUMERICAL") and says("The next save is graded")
    assert wait_until(lambda: save(RIGHT))
    assert says("Next: nox -s check -- watched")
    code, errors = interrupted(process)
    assert code == 0 and "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.3, 1.0])
def test_a_file_that_is_away_for_a_moment_is_waited_for(command, repository, by_hand, seconds):
    """As by `git stash` or another branch; a round may begin or be under way meanwhile."""
    by_hand("moved", RIGHT)
    process, says = command("moved")
    path, hidden = (repository / "contributors" / "moved" / "rotate_half.py", repository / "away")
    assert says("Next: nox -s check -- moved")
    path.rename(hidden)
    time.sleep(seconds)
    hidden.rename(path)
    assert says("Next: nox -s check -- moved")
    assert process.poll() is None


def test_a_file_that_vanishes_before_it_is_read_is_one_line(alice, monkeypatch):
    def vanishes():
        path.unlink()
        return path.read_text()

    path = alice.folder / "rotate_half.py"
    alice.save(path.name, RIGHT)
    monkeypatch.setattr(alice.watch, "_select", vanishes)
    assert alice.round() == [f"{path} is away: waiting for it"]
    assert not alice.watch.passes


@pytest.mark.slow
def test_ctrl_c_amid_a_hanging_round_ends_it_with_1(command, by_hand, tmp_path):
    by_hand("hanging", hangs(tmp_path / "called"))
    process, says = command("hanging")
    assert says("Watching contributors/hanging: ")
    assert wait_until((tmp_path / "called").exists)
    assert interrupted(process) == (1, "")


@pytest.mark.parametrize(
    ("handle", "says"), [("house", "package watchfiles is missing"), ("nobody", "nobody")]
)
@pytest.mark.slow
def test_what_cannot_be_watched_is_one_line(study, handle, says):
    assert says in one_line(study("check", handle, "--watch", hidden="watchfiles"))


# --- saves ----------------------------------------------------------------------------------------


AGAIN = 1.0
"""Seconds after which a file that was saved before its folder was watched is saved again."""


@pytest.fixture
def saved(tmp_path):
    """Return a folder with one file, and the names of the saves seen once one of this file is.

    With a text the file is written until a save of it is seen.
    """
    folder, simple_queue, names, end = (
        tmp_path / "alice",
        queue.SimpleQueue(),
        set(),
        threading.Event(),
    )
    folder.mkdir()
    (folder / "old.py").write_text("0")

    def listen():
        for several in watch.saves(folder, end):
            simple_queue.put(several)

    def seen(name, text=None):
        def look():
            if text is not None:
                (folder / name).write_text(text)
            with contextlib.suppress(queue.Empty):
                several = {path.name for path in simple_queue.get(timeout=AGAIN)}
                names.update(several)
                return (folder / name).name in several

        assert wait_until(look)
        return names

    thread = threading.Thread(target=listen)
    thread.start()
    yield folder, seen
    end.set()
    thread.join(LONGEST)
    assert not thread.is_alive()


def test_solutions_helpers_and_configurations_are_watched(saved):
    folder, seen = saved
    seen("rope.py", "1")
    (folder / "configs").mkdir()
    seen("configs/gpu.json", "{}")
    (folder / "old.py").unlink()
    seen("old.py")
    (folder / "README.md").write_text("what I try")
    (folder.parent / "bob.py").write_text("of another folder")
    (folder / ".#rope.py").symlink_to("alice@host.1234:1700000000")  # Emacs's lock
    assert seen("last.py", "2") == {"rope.py", "gpu.json", "old.py", "last.py"}


def test_a_folder_may_be_deleted_and_made_again(saved):
    folder, seen = saved
    seen("old.py", "1")  # it is watched
    (folder / "old.py").unlink()
    folder.rmdir()
    folder.mkdir()
    seen("rope.py", "1")
