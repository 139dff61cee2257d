"""prune drops what nothing shows; boards, plots and comparisons stay as they are."""

import argparse
import functools
import io

import pytest
from msgspec.structs import replace

from common import paths
from common.board import markdown
from common.board.comparison import compare, needed
from common.board.plots import sweeps
from common.board.ranking import rank
from common.commands import prune
from common.errors import UserError
from common.records import runs, writer
from common.records.lines import SCHEMA, HistoryLine, LeftOut, Selection
from common.records.writer import RunWriter, Samples
from tests.support.boards import ABOUT, failed, row
from tests.support.boards import RUN as GPU_RUN
from tests.support.git import git as run_git

KNOWN = set(ABOUT)


def path_of(folder, run):
    return folder / f"20261121T08293{run[-1]}Z-{run}.jsonl"


def record(folder, run, *rows, only=None, tier="board", end=True):
    """A run of these rows, each with samples."""
    file = RunWriter(path_of(folder, run))
    selection = Selection(only=only, tier=tier)
    file.write(replace(GPU_RUN, run=run, selection=selection))
    for one in rows:
        ours = replace(one, run=run, tier=tier)
        samples = {name: [time.median] * 50 for name, time in ours.gpu.items()}
        file.rows([ours], [Samples.of(ours, samples, {}) if samples else None])
    if end:
        file.end(run)
    file.close()


def five_runs(folder):
    """Runs of two solutions, the last one unfinished."""
    gone = row(case="gone")
    for number, us in enumerate((9.0, 10.0, 11.0, 12.0), start=1):
        rows = [row(us=us), row("bob/rope", us=2 * us), failed("eager/rope")]
        record(folder, f"r{number}", *rows, *([gone] if number < 3 else []))
    record(folder, "r5", row(us=13.0), end=False)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "results" / "a-gpu"
    five_runs(folder)
    return folder


def shown(folder):
    """All that is drawn from the records."""
    results = runs.read(folder)
    drawn = sweeps.plots(sweeps.rows_of(results, KNOWN))
    board = markdown.leaderboard([results], ABOUT)
    return rank(results.latest()), board, drawn, compare(results, KNOWN), results.versions


def pruned(folder):
    pruning = writer.pruning(folder, needed(runs.read(folder), KNOWN))
    pruning.carry_out()
    return pruning


def interrupted_before(folder):
    """`bench` continues the newest file alone: r5 can never be continued."""
    for number in (6, 7):
        record(folder, f"r{number}", row(us=9.0), row("bob/rope", us=8.0), failed("eager/rope"))


def joined_later(folder):
    """A solution that joined later stands first in the later runs."""
    record(folder, "r1", row("bob/rope", case="c2"), row("bob/rope"))
    for run in ("r2", "r3", "r4"):
        record(folder, run, row(), row(case="c2"), row("bob/rope"), row("bob/rope", case="c2"))


def case_gone(folder):
    """The run that left it out is itself superseded by runs over some solutions."""
    record(folder, "r1", row(), row(case="gone"))
    record(folder, "r2", row())
    for run in ("r3", "r4", "r5"):
        record(folder, run, row(), only="alice")


def plots(folder):
    params = {"dtype": "float32", "s": 32, "b": 1, "h": 8, "d": 256, "d2": 256, "angles": "model"}
    for run, us in (("r1", 9.0), ("r2", 10.0)):
        record(folder, run, row(us=us, params=params), tier="plot")


@pytest.mark.parametrize(
    ("made", "rows"),
    [(five_runs, 8), (lambda folder: (five_runs(folder), interrupted_before(folder)), 15),
     (joined_later, 6), (case_gone, 4), (plots, 1)],
    ids=["five runs", "interrupted", "joined later", "a case is gone", "plots"],
)  # fmt: skip
def test_everything_that_is_shown_stays_as_it_was(tmp_path, made, rows):
    made(tmp_path / "a-gpu")
    before = shown(tmp_path / "a-gpu")
    assert pruned(tmp_path / "a-gpu").rows == rows
    assert shown(tmp_path / "a-gpu") == before


def test_what_it_says_is_freed_is_freed_and_a_second_time_nothing_is(folder):
    size = sum(path.stat().st_size for path in folder.iterdir())
    found = pruned(folder)
    assert found.freed == size - sum(path.stat().st_size for path in folder.iterdir())
    files = {path: path.read_bytes() for path in folder.iterdir()}
    again = pruned(folder)
    assert not (again.freed or again.samples or again.contents)
    assert {path: path.read_bytes() for path in folder.iterdir()} == files


def test_runs_that_are_shown_compared_or_unfinished_are_left_alone(folder):
    names = ("r3", "r4", "r5")
    before = {run: path_of(folder, run).read_bytes() for run in names}
    pruned(folder)
    assert {run: path_of(folder, run).read_bytes() for run in names} == before
    assert all(writer.read_samples(path_of(folder, run)) for run in names)
    assert not any(writer.read_samples(path_of(folder, run)) for run in ("r1", "r2"))


def test_cases_left_out_and_the_memory_of_a_run_stay(tmp_path):
    folder = tmp_path / "a-gpu"
    for run in ("r1", "r2", "r3"):
        file = RunWriter(path_of(folder, run))
        file.write(replace(GPU_RUN, run=run))
        file.rows([row(run=run)])
        file.write(LeftOut(schema=SCHEMA, run=run, op="rope", case="c2", reason="too large"))
        file.end(run, {"harness": 1})
        file.close()
    before, memory = shown(folder), runs.read(folder).memory
    assert pruned(folder).rows == 1
    assert shown(folder) == before
    assert runs.read(folder).memory == memory
    assert len(runs.read(folder).left_out_lines) == 3


def test_a_superseded_row_leaves_its_history(folder):
    pruned(folder)
    run, alice, bob, eager, *_, end = runs.lines(path_of(folder, "r1"))
    assert (run.run, end.run) == ("r1", "r1")
    assert isinstance(alice, HistoryLine)
    assert (alice.solution, alice.case, alice.verdict) == ("alice/rope", "c1", "PASSED")
    assert (alice.time.median, alice.eager, bob.time.median) == (9.0, 20.0, 18.0)
    assert (eager.verdict, eager.time, eager.eager) == ("TIMEOUT", None, None)


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def command(folder, monkeypatch, capsys):
    monkeypatch.setattr(paths, "RESULTS", folder.parent)

    def command(yes=False):
        code = prune.run(argparse.Namespace(yes=yes))
        return code, capsys.readouterr().out

    return command


def test_it_says_what_it_drops_and_asks(command, folder, monkeypatch):
    before = {path: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(UserError, match="give --yes"):
        command()
    monkeypatch.setattr(prune.sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    code, out = command()
    assert code == 1
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    code, out = command(yes=True)
    assert code == 0
    assert out.startswith("a-gpu: remove 2 files of raw samples; shorten 8 superseded rows")
    assert command() == (0, "study: there is nothing to prune\n")


def test_it_waits_for_a_run_to_end(command, folder):
    with (
        writer.locked(folder),
        pytest.raises(UserError, match="another run is writing"),
    ):
        command(yes=True)


# --- in git ---------------------------------------------------------------------------------------


def test_two_branches_that_each_add_a_run_merge_without_conflict(tmp_path):
    git = functools.partial(run_git, tmp_path)
    folder = tmp_path / "results" / "a-gpu"
    git("init", "-b", "main")
    record(folder, "r1", row("eager/rope", us=20.0, peer=True))
    git("add", "-A")
    git("commit", "-m", "eager")
    for branch, run, solution in (("alice", "r2", "alice/rope"), ("bob", "r3", "bob/rope")):
        git("checkout", "-b", branch, "main")
        record(folder, run, row(solution), only=solution)
        git("add", "-A")
        git("commit", "-m", branch)
    git("checkout", "main")
    git("merge", "alice")
    git("merge", "-m", "both", "bob")
    (track,) = rank(runs.read(folder).latest())
    assert {entry.solution for entry in track.entries} == {"eager/rope", "alice/rope", "bob/rope"}
    assert len(runs.files(folder)) == 3
