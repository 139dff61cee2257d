"""`bench --missing`: what a device has not measured as it is, of the tree or of pull requests."""

import json
import shutil
from types import SimpleNamespace

import pytest

from common import cli, paths, solutions
from common.commands import missing
from common.errors import UserError
from common.measure import machine
from common.solutions import Solution
from tests.support.git import environment
from tests.support.git import git as run_git
from tests.support.records import row, written
from tests.support.study import RIGHT

COMMIT = "0123456789" * 4
FILE = "contributors/alice/rope.py"


def asked(**others):
    return SimpleNamespace(**{"address": None, "device": "cpu", "tier": "board"} | others)


@pytest.fixture
def alice(tmp_path, monkeypatch):
    """Her solution, and a folder of records that has none of her."""
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    path = tmp_path / "alice" / "rope.py"
    path.parent.mkdir()
    path.write_text("def rope(t, freqs): return t\n")
    return Solution(path, "rope")


def recorded(solution, folder="cpu", **others):
    """A run of it as it is."""
    fields = {name: others.pop(name) for name in ("tier", "verdict", "sources") if name in others}
    of = row(solution=solution.name, **{"sources": solution.digest, **fields})
    return written(paths.RESULTS / folder, of, **others)


def test_what_was_measured_is_not_missing(alice):
    assert missing.missing([alice], asked()) == [alice]
    recorded(alice)
    assert missing.missing([alice], asked()) == []
    alice.path.write_text("def rope(t, freqs): return t + 0\n")
    assert missing.missing([alice], asked()) == [alice]


def test_words_are_not_measured_again(alice):
    recorded(alice)
    alice.path.write_text('"""A note."""\n\ndef rope(t, freqs): return t  # a remark\n')
    assert missing.missing([alice], asked()) == []


def test_a_failure_was_measured_too(alice):
    recorded(alice, verdict="TIMEOUT")
    assert missing.missing([alice], asked()) == []


@pytest.mark.parametrize(
    "others", [{"end": False}, {"tier": "plot"}, {"folder": "a-gpu"}, {"sources": "before"}]
)
def test_a_row_that_does_not_count(alice, others):
    """Of a run that was interrupted, of another tier, another device, or other sources."""
    recorded(alice, **others)
    assert missing.missing([alice], asked()) == [alice]


def test_each_kind_of_device_of_a_machine_is_asked(alice, monkeypatch):
    monkeypatch.setattr(machine, "results_folders", lambda device: ["gpu-a", "gpu-b"])
    recorded(alice, "gpu-a")
    assert missing.missing([alice], asked()) == [alice]
    recorded(alice, "gpu-b")
    assert missing.missing([alice], asked()) == []


def test_the_devices_of_a_machine_are_named_once(monkeypatch):
    names = ["NVIDIA H200", "NVIDIA L4", "NVIDIA H200"]
    monkeypatch.setattr(machine.torch.cuda, "device_count", lambda: len(names))
    monkeypatch.setattr(machine.torch.cuda, "get_device_name", names.__getitem__)
    assert machine.results_folders("cuda") == ["nvidia-h200", "nvidia-l4"]
    assert machine.results_folders("cpu") == ["cpu"]


def test_the_devices_of_a_cluster_are_not_known(alice):
    with pytest.raises(UserError, match="leave --address out"):
        missing.missing([alice], asked(address="host:1"))


# --- pull requests --------------------------------------------------------------------------------


def test_a_pull_request_is_named_by_its_number_and_its_commit():
    assert missing.pull("12") == (12, "")
    assert missing.pull(f"12@{COMMIT}") == (12, COMMIT)


@pytest.mark.parametrize(
    "text", ["0", "x", "1@abc", "1/head", "-1", "--upload-pack=x", f"@{COMMIT}"]
)
def test_another_name_is_refused(capsys, text):
    with pytest.raises(SystemExit):
        cli.main(["bench", f"--missing={text}"])
    assert "is no pull request: give 12, or 12@COMMIT" in capsys.readouterr().err


@pytest.fixture
def proposal(tmp_path, monkeypatch):
    """Propose files as pull request 7 of a repository; this tree is a clone of its main branch."""
    origin, tree = tmp_path / "origin", tmp_path / "tree"
    (origin / "contributors" / "alice").mkdir(parents=True)
    (origin / "common").mkdir()
    for name in (FILE, "contributors/alice/old.py", "common/x.py"):
        (origin / name).write_text("main")
    run_git(origin, "init", "-q", "-b", "main")
    run_git(origin, "add", ".")
    run_git(origin, "commit", "-qm", "one")
    run_git(tmp_path, "clone", "-q", str(origin), str(tree))
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(paths, "ROOT", tree)
    monkeypatch.setattr(solutions.discover, "__defaults__", (tree / "contributors",))
    monkeypatch.setattr(solutions.left_out, "__defaults__", (tree / "contributors",))

    def propose(removed=(), **files):
        run_git(origin, "switch", "-q", "-C", "proposal")
        for name in removed:
            (origin / name).unlink()
        for name, text in files.items():
            (origin / name).parent.mkdir(parents=True, exist_ok=True)
            (origin / name).write_text(text)
        run_git(origin, "add", ".")
        run_git(origin, "commit", "-qm", "two")
        run_git(origin, "update-ref", "refs/pull/7/head", "HEAD")
        return tree

    return propose


def at(tree):
    """All files of the tree with their texts, without git's."""
    paths = (path for path in tree.rglob("*") if path.is_file() and ".git" not in path.parts)
    return {str(path.relative_to(tree)): path.read_text() for path in paths}


def test_the_folders_of_a_pull_request_come_and_go(proposal):
    tree = proposal(
        ["contributors/alice/old.py"],
        **{FILE: "new", "contributors/김철수/rope.py": "def rope(): ...", "common/x.py": "theirs"},
    )
    before = at(tree)
    with missing.of_pulls([(7, "")]) as handles:
        assert handles == ["alice", "김철수"]
        assert at(tree) == {
            FILE: "new", "contributors/김철수/rope.py": "def rope(): ...", "common/x.py": "main",
        }  # fmt: skip
        (tree / "contributors" / "alice" / "made.txt").write_text("by a solution")
    assert at(tree) == before


def test_they_go_after_an_interruption_too(proposal):
    tree = proposal(**{FILE: "new"})
    with pytest.raises(KeyboardInterrupt), missing.of_pulls([(7, "")]):
        raise KeyboardInterrupt
    assert at(tree)[FILE] == "main"


def test_a_pull_request_that_moved_on_is_not_run(proposal):
    tree = proposal(**{FILE: "new"})
    with (
        pytest.raises(UserError, match=f"not at {COMMIT}: look at it again"),
        missing.of_pulls([(7, COMMIT)]),
    ):
        pytest.fail("laid")
    assert at(tree)[FILE] == "main"


def test_changes_of_ones_own_are_kept(proposal):
    tree = proposal(**{FILE: "new"})
    (tree / FILE).write_text("mine")
    with (
        pytest.raises(UserError, match="has a folder with changes here"),
        missing.of_pulls([(7, "")]),
    ):
        pytest.fail("laid")
    assert (tree / FILE).read_text() == "mine"


def test_a_pull_request_that_there_is_none_of_is_said(proposal):
    proposal(**{FILE: "new"})
    with pytest.raises(UserError, match="pull/8/head"), missing.of_pulls([(8, "")]):
        pytest.fail("laid")


def test_a_folder_of_it_that_is_left_out_is_said(proposal, capsys):
    proposal(**{"contributors/al ice/rope.py": "new", FILE: "new"})
    with missing.of_pulls([(7, "")]) as handles:
        assert handles == ["alice"]
    assert "study: contributors/al ice is left out: rename the folder" in capsys.readouterr().err


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_bench_measures_what_is_missing_and_no_more(study, by_hand, repository):
    words = ("--missing", "--device", "cpu", "--op", "rotate_half")
    by_hand("alice", RIGHT)
    first = study("bench", *words, "--only", "alice,house", timeout=300)
    assert first.code == 0, first.err
    assert "nothing is missing" in study("bench", *words, "--only", "alice").out
    by_hand("bob", RIGHT)
    second = study("bench", *words, "--only", "alice,bob,house", timeout=300)
    *_, newest = sorted((repository / "results" / "cpu").glob("*.jsonl"))
    lines = [json.loads(line) for line in newest.read_text().splitlines()]
    shutil.rmtree(repository / "results")
    assert second.code == 0, second.err
    rows = [line["solution"] for line in lines if line["kind"] == "row"]
    assert rows and set(rows) == {"bob/rotate_half"}
    assert lines[0]["selection"]["only"] == "bob/rotate_half"


def test_leaderboard_accepts_the_option_too(study, recorded):
    ran = study("leaderboard", "--missing", "7", "--csv")
    assert ran.code == 0, ran.err
    assert "house/rope" in ran.out
