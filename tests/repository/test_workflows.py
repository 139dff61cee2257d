"""The script by which a pull request's folders are checked; `nox -s lint` checks the workflows."""

import functools
import os
import subprocess

import pytest

from common.paths import ROOT
from tests.support.git import environment
from tests.support.git import git as run_git

SCRIPT = ROOT / ".github" / "check-folders"
STUB = """#!/bin/sh
echo "checking $6"; echo '```' ; echo '<b>'
[ "$6" != bad ]
"""


@pytest.fixture
def proposed(tmp_path):
    """A repository with a branch that adds these files, and the summary of the check."""

    git = functools.partial(run_git, tmp_path / "tree")
    (tmp_path / "tree" / "contributors" / "old").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text(STUB)
    (tmp_path / "bin" / "python3").chmod(0o755)
    (tmp_path / "tree" / "contributors" / "old" / "rope.py").write_text("")
    git("init", "-q", "-b", "main")
    git("add", ".")
    git("commit", "-qm", "one")
    git("switch", "-qc", "proposal")

    def proposed(*names):
        for name in names:
            path = tmp_path / "tree" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("new")
        git("add", ".")
        git("commit", "-qm", "two", "--allow-empty")
        summary = tmp_path / "summary.md"
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        ran = subprocess.run(["bash", SCRIPT, "main", summary], cwd=tmp_path / "tree",
                             env=environment(PATH=path), capture_output=True,
                             text=True)  # fmt: skip
        return ran.returncode, summary.read_text()

    return proposed


def test_each_folder_that_a_proposal_touches_is_checked_once(proposed):
    code, summary = proposed("contributors/alice/rope.py", "contributors/alice/README.md",
                             "contributors/bob/rotate_half.py", "common/x.py")  # fmt: skip
    assert code == 0
    assert [line for line in summary.splitlines() if "checking" in line] == [
        "    checking alice", "    checking bob",
    ]  # fmt: skip
    assert "## alice" in summary and "old" not in summary


def test_a_failing_folder_fails_the_job_and_the_others_are_checked(proposed):
    code, summary = proposed("contributors/bad/rope.py", "contributors/good/rope.py")
    assert code == 1
    assert "checking bad" in summary and "checking good" in summary


def test_what_a_solution_prints_stays_text_in_the_summary(proposed):
    _, summary = proposed("contributors/alice/rope.py")
    assert "\n    ```\n    <b>\n" in summary


@pytest.mark.parametrize(
    "handle", ["--only", "$(touch x)", "a b", "a;b", "_template", "..a", "`id`", "a'b"]
)
def test_a_name_that_is_no_handle_is_not_run(proposed, handle):
    code, summary = proposed(f"contributors/{handle}/rope.py")
    assert (code, summary) == (0, "No contributor's folder is touched.\n")


def test_a_proposal_without_a_folder_says_so(proposed):
    assert proposed("common/x.py") == (0, "No contributor's folder is touched.\n")
