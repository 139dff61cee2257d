"""Members work at the same time; their branches merge one after the other without conflict."""

import functools
import shutil
import subprocess
import sys

import pytest
from msgspec.structs import replace

from common.paths import ROOT
from tests.support import boards
from tests.support.git import environment
from tests.support.git import git as run_git
from tests.support.records import written

pytestmark = pytest.mark.slow

MEMBERS = [f"member{number}" for number in range(4)]


def ran(tree, *command):
    """What a command prints in a clone."""
    ran = subprocess.run(command, cwd=tree, env=environment(), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def record(tree, handle, number):
    """What `bench --only HANDLE` leaves on a GPU, made up."""
    run = replace(boards.RUN, run=f"{number:012x}")
    name = f"20261101T0000{number:02}.000000Z-{run.run}.jsonl"
    row = boards.row(f"{handle}/rope", us=10.0 + number, run=run.run)
    written(tree / "results" / "a-gpu", row, run=run, name=name)


def drawn_and_committed(tree):
    """Do what the workflow of main does."""
    ran(tree, sys.executable, "-m", "common", "leaderboard")
    return ran(tree, "bash", ROOT / ".github" / "commit-boards", "main")


@pytest.fixture
def main(repository, tmp_path):
    """The main branch of a repository, with a board of eager alone, and the bare one behind it."""
    tree = tmp_path / "main"
    shutil.copytree(repository, tree, ignore=shutil.ignore_patterns("results", "site", "docs"))
    for name in (".gitignore", ".gitattributes"):
        shutil.copy(ROOT / name, tree)
    record(tree, "eager", 20)
    run_git(tree, "init", "-q", "-b", "main")
    run_git(tree, "add", ".")
    run_git(tree, "commit", "-qm", "the study")
    run_git(tmp_path, "clone", "-q", "--bare", "main", "origin")
    run_git(tree, "remote", "add", "origin", "../origin")
    drawn_and_committed(tree)
    return tree


def proposed(tmp_path, handle, number):
    """A member's clone: their folder and their record are committed, and nothing that is drawn."""
    tree = tmp_path / handle
    git = functools.partial(run_git, tree)
    run_git(tmp_path, "clone", "-q", "origin", handle)
    git("switch", "-qc", handle)
    (tree / "contributors" / handle).mkdir()
    (tree / "contributors" / handle / "rope.py").write_text("def rope(t, freqs): return t\n")
    record(tree, handle, number)
    git("add", "contributors", "results")
    git("commit", "-qm", handle)
    git("push", "-q", "origin", handle)


def test_branches_merge_without_conflict_while_main_draws(main, tmp_path):
    for number, handle in enumerate(MEMBERS):
        proposed(tmp_path, handle, number)
    for handle in MEMBERS:
        run_git(main, "fetch", "-q", "origin")
        run_git(main, "merge", "-q", "--no-ff", "-m", handle, f"origin/{handle}")  # or it fails
        run_git(main, "push", "-q", "origin", "main")
        drawn_and_committed(main)
    run_git(tmp_path, "clone", "-q", "origin", "later")
    for name, shown in (("LEADERBOARD.md", MEMBERS), ("README.md", MEMBERS[:3])):
        text = (tmp_path / "later" / name).read_text()
        assert [handle for handle in MEMBERS if f"{handle}/rope" in text] == shown
    assert drawn_and_committed(tmp_path / "later") == "The boards are as they were.\n"
