"""The folders of a pull request are checked out for the GPU's workflow, at one commit alone."""

import subprocess
import sys

import pytest

from common.paths import ROOT
from tests.support.git import environment
from tests.support.git import git as run_git

FILE, OLD = "contributors/alice/rope.py", "contributors/alice/old.py"
ROPE = "def rope(t, freqs): ..."


@pytest.fixture
def proposal(tmp_path):
    """Propose files as pull request 7, and return its commit; the tree is a clone of main."""
    origin = tmp_path / "origin"
    (origin / "contributors" / "alice").mkdir(parents=True)
    (origin / "common").mkdir()
    for name in (FILE, OLD, "common/x.py"):
        (origin / name).write_text("main")
    run_git(origin, "init", "-q", "-b", "main")
    run_git(origin, "add", ".")
    run_git(origin, "commit", "-qm", "one")
    run_git(tmp_path, "clone", "-q", str(origin), str(tmp_path / "tree"))

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
        return (origin / ".git" / "refs" / "pull" / "7" / "head").read_text().strip()

    return propose


@pytest.fixture
def take(tmp_path):
    """Take a pull request into the tree; return the code, the handles, what was said, the files."""

    def take(number, commit):
        tree = tmp_path / "tree"
        command = [sys.executable, "-I", "-S", ROOT / ".github" / "take_pull.py", number, commit]
        ran = subprocess.run(command, cwd=tree, capture_output=True, text=True, env=environment())
        files = {str(path.relative_to(tree)): path.read_text() for path in tree.rglob("*.py")}
        return ran.returncode, ran.stdout, ran.stderr, files

    return take


def test_the_contributors_folders_of_a_pull_request_are_taken(proposal, take):
    files = {FILE: ROPE, "contributors/김철수/rope.py": ROPE, "contributors/al ice/rope.py": ROPE}
    code, handles, said, found = take("7", proposal([OLD], **files, **{"common/x.py": "theirs"}))
    assert (code, handles) == (0, "alice,김철수\n")
    assert "contributors/al ice is left out: rename the folder" in said
    assert found == files | {"common/x.py": "main"}


def test_a_pull_request_without_a_solution_measures_nothing(proposal, take):
    code, handles, said, _ = take("7", proposal(**{"common/x.py": "theirs"}))
    assert code == 1 and not handles
    assert "has no contributor's folder to measure" in said


@pytest.mark.parametrize(
    ("number", "moved", "changed", "told"),
    [("7", True, False, "look at it again"), ("8", False, False, "pull/8/head"),
     ("7", False, True, "has a folder with changes here")],
)  # fmt: skip
def test_otherwise_nothing_is_taken(proposal, take, tmp_path, number, moved, changed, told):
    commit = proposal(**{FILE: ROPE})
    text = "mine" if changed else "main"
    (tmp_path / "tree" / FILE).write_text(text)
    code, handles, said, found = take(number, "0" * 40 if moved else commit)
    assert code and not handles and told in said
    assert found[FILE] == text
