"""The folders of a pull request are checked out for the GPU's workflow, at one commit alone."""

import subprocess
import sys

import pytest

from common.paths import ROOT
from tests.support.git import environment
from tests.support.git import git as run_git

FILE, OLD, OURS = "contributors/alice/rope.py", "contributors/alice/old.py", "common/x.py"
ROPE = "def rope(t, freqs): ..."


@pytest.fixture
def proposal(tmp_path):
    """Propose files as pull request 7, and return its commit; the tree is a clone of main."""
    origin = tmp_path / "origin"

    def commit(files):
        for name, text in files.items():
            (origin / name).parent.mkdir(parents=True, exist_ok=True)
            (origin / name).write_text(text)
        run_git(origin, "add", ".")
        run_git(origin, "commit", "-qm", "files")

    def propose(files, removed=()):
        run_git(origin, "switch", "-q", "-C", "proposal")
        for name in removed:
            (origin / name).unlink()
        commit(files)
        run_git(origin, "update-ref", "refs/pull/7/head", "HEAD")
        return (origin / ".git" / "refs" / "pull" / "7" / "head").read_text().strip()

    origin.mkdir()
    run_git(origin, "init", "-q", "-b", "main")
    commit(dict.fromkeys((FILE, OLD, OURS), "main"))
    run_git(tmp_path, "clone", "-q", str(origin), str(tmp_path / "tree"))
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


def test_the_contributors_folders_of_a_pull_request_are_taken_and_nothing_else(proposal, take):
    files = {FILE: ROPE, "contributors/김철수/rope.py": ROPE, "contributors/al ice/rope.py": ROPE}
    code, handles, said, found = take("7", proposal(files | {OURS: "theirs"}, [OLD]))
    assert (code, handles) == (0, "alice,김철수\n")
    assert "contributors/al ice is left out: rename the folder" in said
    assert found == files | {OURS: "main"}


@pytest.mark.parametrize(
    ("number", "files", "commit", "mine", "says"),
    [
        ("7", {OURS: "theirs"}, None, "main", "has no contributor's folder to measure"),
        ("7", {FILE: ROPE}, "0" * 40, "main", "look at it again"),
        ("8", {FILE: ROPE}, None, "main", "pull/8/head"),
        ("7", {FILE: ROPE}, None, "mine", "has a folder with changes here"),
    ],
)
def test_otherwise_nothing_is_taken(proposal, take, tmp_path, number, files, commit, mine, says):
    proposed = proposal(files)
    (tmp_path / "tree" / FILE).write_text(mine)
    code, handles, said, found = take(number, commit or proposed)
    assert code and not handles and says in said
    assert found[FILE] == mine
