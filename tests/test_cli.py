"""The command line as its users meet it: exit codes, what stands on stderr, what it writes.

Every command runs in a copy of the repository and without a GPU, so that nothing here touches the
real results, README and leaderboard.
"""

import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple

import pytest

from common import cli
from common.paths import ROOT
from common.records import runs
from common.records.fields import SCHEMA, Summary
from common.records.runs import Record, Run
from common.records.writer import RunWriter

Ran = namedtuple("Ran", "code out err")

# On PYTHONPATH it takes the packages named in HIDDEN away, as if they had not been installed.
HIDE = """
import os
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def find_spec(cls, name, path=None, target=None):
    if name.partition(".")[0] not in os.environ.get("HIDDEN", "").split():
        return find(name, path, target)

PathFinder.find_spec = classmethod(find_spec)
"""

RIGHT = '''"""right, in plain torch"""
import torch

def rotate_half(x, *, interleaved=False):
    if interleaved:
        raise NotImplementedError("interleaved")
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)
'''
WRONG = RIGHT.replace("-x2", "x2")
UNSUPPORTED = '''"""nothing yet"""

def rotate_half(x):
    raise NotImplementedError("tomorrow")
'''


@pytest.fixture(scope="session")
def repository(tmp_path_factory):
    """A copy of the tree, with the packages' blocker beside it."""
    top = tmp_path_factory.mktemp("study")
    ignore = shutil.ignore_patterns("__pycache__")
    # not everybody's folder: one of them may have a name that a test gives
    for name in ("common", "contributors/_template", "contributors/house"):
        shutil.copytree(ROOT / name, top / "tree" / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, top / "tree")
    (top / "hide").mkdir()
    (top / "hide" / "sitecustomize.py").write_text(HIDE)
    return top / "tree"


@pytest.fixture
def study(repository):
    """Run `study` in the copy; `hidden` packages are not there."""

    def study(*arguments, hidden="", timeout=60):
        environment = os.environ | {
            "HIDDEN": hidden,
            "PYTHONPATH": str(repository.parent / "hide"),
            "CUDA_VISIBLE_DEVICES": "",
        }
        ran = subprocess.run(
            [sys.executable, "-m", "common", *map(str, arguments)],
            cwd=repository,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    return study


@pytest.fixture
def by_hand(repository):
    """Add a folder as a contributor would, and take it away again."""
    folders = []

    def add(handle, text):
        folders.append(repository / "contributors" / handle)
        folders[-1].mkdir()
        (folders[-1] / "rotate_half.py").write_text(text)

    yield add
    for folder in folders:
        shutil.rmtree(folder)


@pytest.fixture
def recorded(repository):
    """A record of a GPU that nobody has, and its removal with all that was drawn from it."""
    row = Record(
        schema=SCHEMA, run="r1", solution="house/rope", op="rope", case="c1", params={},
        track="core", ranked_by="gpu", direction="forward", verdict="PASSED", error=0.5, bytes=8,
        flops=9, sources="s1", harness="h1",
        gpu={name: Summary.of([us])
             for name, us in (("solution", 10.0), ("eager", 25.0), ("copy", 5.0))},
    )  # fmt: skip
    readme = repository / "README.md"
    before = readme.read_text()
    path = repository / "results" / "gpu" / "20261121T082930Z-r1.jsonl"
    writer = RunWriter(path)
    begun = Run(
        schema=SCHEMA, run="r1", device="cuda", device_name="A GPU", versions={"torch": "2"},
        absent={},
    )  # fmt: skip
    writer.begin(begun)
    writer.row(row)
    writer.close()
    yield path
    shutil.rmtree(repository / "results")
    (repository / "LEADERBOARD.md").unlink(missing_ok=True)
    readme.write_text(before)


def one_line(ran):
    """The complaint, which is all that stands on stderr."""
    assert ran.code not in (0, None)
    (line,) = ran.err.splitlines()
    assert line.startswith("study")
    return line


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("grade --op ropes", "ropes"),
        ("list --op ropes", "rotate_half"),
        ("leaderboard --op ropes", "ropes"),
        ("grade --only nobody", "house"),
        ("leaderboard --only nobody", "nobody"),
        ("list --only house/nothing", "house/nothing"),
        ("list --only wkshin89 --op masked", "masked"),
        ("check nobody", "nobody"),
        ("check", "HANDLE"),
        ("grade --tier large", "large"),
        ("grade --sample 0", "0"),
        ("grade --fast", "--fast"),
        ("bench --tier smoke", "--tier"),
        ("leaderboard extra", "extra"),
        ("grade --device tpu", "tpu"),
        ("grades", "grades"),
        ("", "COMMAND"),
        ("new alice ropes", "ropes"),
        ("new ../alice rope", "../alice"),
        ("new _alice rope", "_alice"),
        ("new al.ice rope", "al.ice"),
        ("new alice", "OP"),
    ],
)
def test_bad_input_gets_one_line(study, arguments, says):
    assert says in one_line(study(*arguments.split()))


@pytest.mark.parametrize("command", ["grade", "bench", "check house"])
def test_a_gpu_that_is_not_there_is_said_so(study, command):
    assert "no GPU" in one_line(study(*command.split(), "--device", "cuda"))


@pytest.mark.parametrize(
    "command", ["grade --tier matrix", "grade --tier plot", "bench --tier plot"]
)
def test_a_tier_that_needs_a_gpu_says_so(study, command):
    assert "needs a GPU" in one_line(study(*command.split(), "--op", "rope"))


@pytest.mark.parametrize(
    ("command", "package"),
    [
        ("leaderboard", "rich"),
        ("leaderboard", "numpy"),
        ("bench", "rich"),
        ("bench", "torch"),
        ("grade", "torch"),
        ("grade", "triton"),
        ("grade", "numpy"),
        ("bench", "msgspec"),
        ("check house", "triton"),
    ],
)
def test_a_missing_package_is_named(study, command, package):
    line = one_line(study(*command.split(), hidden=package))
    assert f"package {package} is missing" in line


def test_results_of_another_schema_are_refused(study, recorded):
    recorded.write_text(recorded.read_text() + '{"schema": 99, "kind": "row"}\n')
    assert "line 3" in one_line(study("leaderboard"))


def test_no_results_are_said_so(study):
    assert "run bench first" in one_line(study("leaderboard"))


def test_a_file_that_cannot_be_written_is_said_before_grading(study, repository):
    one_line(study("grade", "--op", "rotate_half", "--sample", 1, "--json", "nowhere/at/all.json"))


# --- without torch --------------------------------------------------------------------------------


def test_list_needs_no_torch(study):
    ran = study("list", hidden="torch triton numpy rich")
    assert ran.code == 0, ran.err
    assert "house/rope" in ran.out
    (eager,) = (line for line in ran.out.splitlines() if line.startswith("eager"))
    assert "absent: the package torch is not installed" in eager


def test_leaderboard_needs_no_torch_and_writes_the_boards(study, repository, recorded):
    options = "--op rope --only house --device cpu --verbose"  # bench's own, as nox hands them on
    ran = study("leaderboard", *options.split(), hidden="torch triton")
    assert ran.code == 0, ran.err
    texts = [ran.out, *((repository / n).read_text() for n in ("README.md", "LEADERBOARD.md"))]
    for text in texts:
        assert "house/rope" in text
        assert "2.50 ± 0.00" in text


@pytest.fixture
def plotted(recorded):
    """The record with a row of the tier plot."""
    *_, line = recorded.read_text().splitlines()
    params = {"dtype": "float32", "s": 32, "b": 1, "h": 8, "d": 256, "d2": 256, "angles": "model"}
    fields = {"tier": "plot", "case": "sbhd-32x1x8x256-float32", "params": params}
    recorded.write_text(recorded.read_text() + json.dumps(json.loads(line) | fields) + "\n")
    return recorded


def test_leaderboard_draws_the_plots_without_torch(study, repository, plotted):
    ran = study("leaderboard", "--tier", "plot", hidden="torch triton scipy")
    assert ran.code == 0, ran.err
    path = "docs/plots/gpu/rope-bandwidth.svg"
    assert (repository / path).read_text().startswith("<?xml")
    assert f"({path})" in (repository / "LEADERBOARD.md").read_text()


def test_plots_need_matplotlib_and_the_board_does_not(study, recorded):
    assert study("leaderboard", hidden="matplotlib").code == 0


def test_a_missing_matplotlib_is_named_where_there_are_plots(study, plotted):
    line = one_line(study("leaderboard", hidden="matplotlib"))
    assert "package matplotlib is missing" in line


@pytest.fixture
def twice(recorded):
    """The record finished, and the same run again."""
    once = recorded.read_text() + '{"schema":2,"kind":"end","run":"r1"}\n'
    recorded.write_text(once)
    again = recorded.with_name("20261121T082931Z-r2.jsonl")
    again.write_text(once.replace('"r1"', '"r2"'))
    return recorded, again


def test_two_runs_are_compared_without_torch_and_nothing_is_written(study, repository, twice):
    before = (repository / "README.md").read_text()
    ran = study("leaderboard", "--compare", "--device", "cpu", hidden="torch triton matplotlib")
    assert ran.code == 0, ran.err
    assert "rope: run r1, then r2" in ran.out
    assert "the largest moved by" not in ran.out, "10 µs is too short to say"
    assert "2.50 ± 0.00   2.50 ± 0.00    +0.0%" in ran.out
    assert (repository / "README.md").read_text() == before
    assert not (repository / "LEADERBOARD.md").exists()


def test_one_run_alone_is_told_to_bench_again(study, recorded):
    assert "run bench again" in one_line(study("leaderboard", "--compare"))


def test_two_runs_that_timed_nothing_have_nothing_to_compare(study, twice):
    for path in twice:
        path.write_text(path.read_text().replace('"cuda"', '"cpu"'))
    assert "run bench again" in one_line(study("leaderboard", "--compare"))


def test_two_runs_of_another_op_are_told_to_bench_again(study, twice):
    assert "run bench again" in one_line(study("leaderboard", "--compare", "--op", "rotate_half"))


def test_a_torn_last_line_is_a_notice(study, recorded):
    recorded.write_text(recorded.read_text() + '{"schema": 2, "ki')
    ran = study("leaderboard", hidden="torch")
    assert ran.code == 0
    assert len(ran.err.splitlines()) == 1
    assert "house/rope" in ran.out


def test_one_file_that_nothing_can_parse_harms_no_listing(study, by_hand):
    by_hand("deep", "-" * 100_000 + "1")
    by_hand("torn", "def rotate_half(:")
    ran = study("list", hidden="torch")
    assert ran.code == 0, ran.err
    assert "deep/rotate_half" in ran.out
    assert "house/rope" in ran.out


# --- a newcomer -----------------------------------------------------------------------------------


def test_what_new_writes_passes_check(study, repository):
    folder = repository / "contributors" / "newcomer"
    for op in ("rotate_half", "rope"):
        ran = study("new", "newcomer", op, hidden="torch triton numpy rich")
        assert ran.code == 0, ran.err
    assert {f.name for f in folder.iterdir()} == {"README.md", "rope.py", "rotate_half.py"}
    assert "newcomer" in (folder / "README.md").read_text()
    ran = study("check", "newcomer")
    shutil.rmtree(folder)
    assert ran.code == 0, ran.out + ran.err
    assert "newcomer/rope, smoke: " in ran.out
    assert "newcomer/rotate_half, smoke: " in ran.out
    assert "PASSED" in ran.out


def test_new_overwrites_nothing(study, repository):
    study("new", "careful", "rope")
    folder = repository / "contributors" / "careful"
    for name in ("rope.py", "README.md"):
        (folder / name).write_text("mine")
    assert "careful/rope.py" in one_line(study("new", "careful", "rope"))
    assert study("new", "careful", "rotate_half").code == 0
    assert (folder / "rope.py").read_text() == (folder / "README.md").read_text() == "mine"
    assert (folder / "rotate_half.py").exists()
    shutil.rmtree(folder)


def test_new_tuned_brings_the_helper_that_reads_configurations(study, repository):
    folder = repository / "contributors" / "tuner"
    ran = study("new", "tuner", "rotate_half", "--tuned", hidden="torch triton numpy rich")
    assert ran.code == 0, ran.err
    assert "tuner/rotate_half.py and contributors/tuner/configs.py" in ran.out
    assert {f.name for f in folder.iterdir()} == {"README.md", "rotate_half.py", "configs.py"}
    template = repository / "contributors" / "_template" / "configs.py"
    assert (folder / "configs.py").read_bytes() == template.read_bytes()
    (folder / "configs.py").write_text("mine")
    assert "tuner/configs.py" in one_line(study("new", "tuner", "rotate_half", "--tuned"))
    assert study("new", "tuner", "rope", "--tuned").code == 0
    assert (folder / "configs.py").read_text() == "mine"
    shutil.rmtree(folder)


@pytest.fixture
def no_template(repository):
    """An op for which there is none."""
    template = repository / "contributors" / "_template" / "rope.py"
    text = template.read_text()
    template.unlink()
    yield "rope"
    template.write_text(text)


def test_new_tuned_adds_the_helper_alone_to_what_is_there(study, repository, by_hand, no_template):
    by_hand("alice", "mine")
    folder = repository / "contributors" / "alice"
    shutil.copy(folder / "rotate_half.py", folder / f"{no_template}.py")
    for op in ("rotate_half", no_template):
        (folder / "configs.py").unlink(missing_ok=True)
        ran = study("new", "alice", op, "--tuned")
        assert ran.code == 0, ran.err
        assert ran.out.startswith("wrote contributors/alice/configs.py; next: ")
        assert (folder / f"{op}.py").read_text() == "mine"
        assert "class Tuned" in (folder / "configs.py").read_text()
    assert "no template" in one_line(study("new", "bob", no_template, "--tuned"))
    assert not (repository / "contributors" / "bob").exists()


def test_new_refuses_the_name_of_a_peer(study, repository):
    """Two solutions of one name would share their rows."""
    ran = study("new", "eager", "rope")
    shutil.rmtree(repository / "contributors" / "eager", ignore_errors=True)
    assert "eager" in one_line(ran)


def test_check_says_what_is_wrong_and_where(study, by_hand):
    by_hand("alice", WRONG)
    ran = study("check", "alice")
    assert ran.code == 1, ran.err
    assert "INCORRECT_NUMERICAL" in ran.out
    assert "output at [0, 0, 0, 0]: expected " in ran.out
    assert "rotate_half: core" in ran.out


# --- grading --------------------------------------------------------------------------------------


def test_grade_writes_every_verdict_and_fails_where_a_contributor_does(study, tmp_path, by_hand):
    by_hand("alice", WRONG)
    file = tmp_path / "verdicts.json"
    ran = study("grade", "--only", "alice", "--sample", 3, "--json", file)
    assert ran.code == 1, ran.err
    rows = json.loads(file.read_text())
    assert len(rows) == 2 * 3
    fields = {"solution", "op", "case", "direction", "verdict", "reason"}
    assert all(fields <= row.keys() for row in rows)
    assert {row["direction"] for row in rows} == {"forward", "backward"}
    assert {(row["solution"], row["op"]) for row in rows} == {("alice/rotate_half", "rotate_half")}
    failures = [row for row in rows if row["verdict"] not in ("PASSED", "UNSUPPORTED")]
    assert failures
    assert all(row["reason"] for row in failures)
    assert len(ran.out.splitlines()) == 3


def test_what_is_unsupported_fails_nothing(study, tmp_path, by_hand):
    by_hand("bob", UNSUPPORTED)
    file = tmp_path / "verdicts.json"
    ran = study("grade", "--only", "bob", "--sample", 2, "--json", file)
    assert ran.code == 0, ran.err
    assert {row["verdict"] for row in json.loads(file.read_text())} == {"UNSUPPORTED"}


def test_a_folder_added_by_hand_is_benched_and_on_the_board(study, repository, by_hand):
    by_hand("alice", RIGHT)
    ran = study("bench", "--only", "alice")
    assert ran.code == 0, ran.err
    results = runs.read(repository / "results" / "cpu")
    assert results.finished
    assert {row.solution for row in results.rows} == {"alice/rotate_half"}
    assert {(r.track, r.verdict) for r in results.rows} == {
        ("core", "PASSED"),
        ("extended", "UNSUPPORTED"),
    }
    ran = study("leaderboard")
    shutil.rmtree(repository / "results")
    assert ran.code == 0, ran.err
    assert "alice/rotate_half" in ran.out
    assert "right, in plain torch" in ran.out
    assert "Nothing was timed" in ran.out
    assert not (repository / "LEADERBOARD.md").exists()


def test_a_gpu_that_is_too_small_is_one_line(monkeypatch, capsys):
    class OutOfMemoryError(RuntimeError):
        """As torch's is."""

    def full():
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 1.16 GiB.")

    monkeypatch.setattr(cli.solutions, "everyone", full)
    with pytest.raises(SystemExit) as ended:
        cli.main(["list"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setattr(cli.solutions, "everyone", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["list"])
