"""`study check --watch`: each save is graded, what failed last first, until Ctrl-C."""

import argparse
import contextlib
import functools
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading

import pytest

from common import solutions
from common.commands import watch
from common.commands.grader import Grader
from common.grading import worker
from common.grading.compiling import Compiler
from common.grading.fork_server import ForkServer
from tests.support.boards import row
from tests.support.study import RIGHT, WRONG, environment
from tests.support.waiting import LONGEST, wait_until


@pytest.fixture(scope="module")
def server():
    with contextlib.closing(ForkServer("cpu")) as server:
        yield server


CASE = "8x2x32x128-bfloat16-twin"


def hangs(mark):
    """A solution that makes this file once it is called, and then never ends."""
    lines = f"    open({str(mark)!r}, 'w').close()\n    while True:\n        pass\n"
    return RIGHT.replace("    x1, x2", f"{lines}    x1, x2")


class Watched:
    """A folder, and the rounds over it with what they print."""

    def __init__(self, root, server, capsys, case=None):
        server.resume()
        self.folder, self.capsys = root / "alice", capsys
        self.folder.mkdir()
        options = argparse.Namespace(only="alice", op=None, case=case, hint=False, verbose=False)
        # on cuda it compiles nothing
        self.watch = watch.FolderWatch(Grader(server, Compiler("cuda")), options)

    def save(self, name, text):
        """Save a file; return its path."""
        path = self.folder / f"{name}.py"
        path.write_text(text)
        return path

    def round(self, **files):
        """Save files and grade the folder; return the lines and whether the round passes."""
        for name, text in files.items():
            self.save(name, text)
        self.watch.round()
        return self.capsys.readouterr().out.splitlines(), self.watch.passes


@pytest.fixture
def alice(tmp_path, server, capsys, monkeypatch, request):
    """Her folder, watched with the `--case` that a test may give."""
    monkeypatch.setattr(solutions.discover, "__defaults__", (tmp_path,))
    return Watched(tmp_path, server, capsys, getattr(request, "param", None))


@pytest.mark.slow
def test_failures_are_graded_first_and_a_round_that_passes_says_what_is_next(alice):
    (alice.folder / ".#rotate_half.py").symlink_to("alice@host.1234:1700000000")  # Emacs's lock
    lines, passes = alice.round(rotate_half=WRONG)
    assert "INCORRECT_NUMERICAL" in lines[0] and not passes
    assert lines[-1].endswith("The next save is graded from the failures on.")
    raises = "    if x.dtype == torch.float16:\n        raise TypeError\n    x1, x2"
    lines, passes = alice.round(rotate_half=RIGHT.replace("    x1, x2", raises))
    assert lines[0].endswith(": PASSED") and "mended" in lines[-1] and not passes
    lines, passes = alice.round(rotate_half=RIGHT)
    assert re.fullmatch(r"alice/rotate_half \S*float16\S*: PASSED", lines[0]), "it failed last"
    summary = r"alice/rotate_half: PASSED in \d+ of 77 cases; \d+ not supported"
    assert re.fullmatch(summary, lines[1])
    assert lines[-1].endswith("mended. Next: nox -s check -- alice")
    assert passes


@pytest.mark.slow
def test_the_saved_file_is_graded_first(alice):
    for name in ("rotate_half_v2", "rotate_half"):
        lines, _ = alice.round(**{"rotate_half": RIGHT, name: RIGHT + "\n"})
        assert lines[0].startswith(f"alice/{name} ")


@pytest.mark.slow
@pytest.mark.parametrize("alice", [CASE], indirect=True)
def test_a_case_of_the_board_is_measured_and_no_other(alice):
    assert alice.round(rotate_half=RIGHT) == (
        [
            "alice/rotate_half: PASSED in 1 of 1 board case; 2 cases not run",
            "  note: no Triton kernel was launched, torch answered (1 case)",
            "Nothing is timed without a GPU.",
        ],
        True,
    )
    lines, passes = alice.round(rotate_half=WRONG)
    assert f"alice/rotate_half {CASE} forward: INCORRECT_NUMERICAL" in lines[0] and not passes


def test_times_stand_beside_the_last_and_the_best():
    times = []
    first, faster, slower = (
        watch.described(row(us=us, eager=90.0, copy=30.0), times) for us in (50.0, 40.0, 44.0)
    )
    assert first == "alice/rope forward: 50.0 us; eager 90.0; 60% of copy"
    assert ": 40.0 us, -20% since 50.0, best 40.0; eager" in faster and "75% of copy" in faster
    assert ": 44.0 us, +10% since 40.0, best 40.0; eager" in slower
    host = row(us=44.0, direction="backward", ranked_by="host")
    assert watch.described(host, []).startswith("alice/rope with backward: 1.0 us; eager 1.0")


@pytest.mark.slow
def test_a_file_that_is_away_is_awaited_and_a_helper_is_loaded_anew(alice, monkeypatch):
    helped = "from helper import SIGN\n" + RIGHT.replace("-x2", "SIGN * x2")
    path, imports = alice.save("rotate_half", helped), watch.imports_of_ours

    def vanishes(folder):
        path.unlink()
        return path.read_text()

    monkeypatch.setattr(watch, "imports_of_ours", vanishes)
    assert alice.round(helper="SIGN = 1\n") == ([f"{path} is away: waiting for it"], False)
    monkeypatch.setattr(watch, "imports_of_ours", imports)
    assert alice.round()[0][0].endswith("; waiting for a save")
    assert not alice.round(rotate_half=helped)[1]
    assert alice.round(helper="SIGN = -1\n")[1]


# --- saves ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_save_ends_a_round_even_where_a_kernel_hangs(alice, tmp_path, monkeypatch):
    """What hangs would be waited for until its deadline, which does not come here."""
    monkeypatch.setitem(worker.DEADLINE, "cpu", 100 * LONGEST)

    def saves():
        assert wait_until((tmp_path / "called").exists)
        yield {alice.save("rotate_half", "def rotate_half(x):\n    raise NotImplementedError\n")}

    alice.save("rotate_half", hangs(tmp_path / "called"))
    alice.watch.follow(saves())
    out = alice.capsys.readouterr().out
    assert "CRASHED" not in out and "TIMEOUT" not in out
    assert "saved: rotate_half.py" in out


def test_an_error_of_the_saves_or_of_a_round_ends_the_watch(alice, monkeypatch):
    def fails():
        raise OSError(28, "no space left for a watch")
        yield

    with pytest.raises(OSError, match="no space left"):
        alice.watch.follow(fails())
    monkeypatch.setattr(watch.shared, "contributors", lambda options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        alice.watch.follow(watch.saves(alice.folder, alice.watch.end))


def test_files_of_a_folder_that_comes_and_goes_are_watched(tmp_path):
    """A file may be saved before its folder is watched, so that it is saved until that is seen."""
    folder, saves, end = tmp_path / "alice", queue.SimpleQueue(), threading.Event()
    seen = set()
    folder.mkdir()
    thread = threading.Thread(target=lambda: [*map(saves.put, watch.saves(folder, end))])
    thread.start()

    def saved(name):
        def look():
            (folder / name).write_text("1")
            with contextlib.suppress(queue.Empty):
                seen.update(path.name for path in saves.get(timeout=1.0))
            return (folder / name).name in seen

        return wait_until(look)

    assert saved("rope.py")
    (folder / "configs").mkdir()
    assert saved("configs/gpu.json")
    (folder / "README.md").write_text("what I try")
    (folder.parent / "bob.py").write_text("of another folder")
    (folder / ".#rope.py").symlink_to("alice@host.1234:1700000000")  # Emacs's lock
    assert saved("helper.py")
    assert seen == {"rope.py", "gpu.json", "helper.py"}
    folder.rename(tmp_path / "away").rename(folder)
    assert wait_until(lambda: folder in saves.get(timeout=LONGEST))
    shutil.rmtree(folder)
    folder.mkdir()
    assert saved("new.py")
    end.set()
    thread.join(LONGEST)
    assert not thread.is_alive()


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_ctrl_c_ends_a_hanging_round_with_1(by_hand, repository, tmp_path):
    by_hand("hanging", hangs(tmp_path / "called"))
    command = [sys.executable, "-m", "common", "check", "hanging", "--watch"]
    # a shell starts its background jobs so that they ignore the signal
    heeds = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        command, cwd=repository, env=environment(), text=True, preexec_fn=heeds,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        found = wait_until((tmp_path / "called").exists)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LONGEST)
    assert found and out.startswith("Watching contributors/hanging: ")
    assert (process.returncode, err) == (1, "")
