"""The scripts of the workflows: who may approve a commit, and the check of a pull request."""

import functools
import json
import os
import subprocess
import sys

import pytest

from common.board.terminal import PLACE
from common.paths import ROOT
from tests.support.git import environment
from tests.support.git import git as run_git

GITHUB = ROOT / ".github"
COMMIT = "0123456789" * 4
PYTHON = f"""#!/bin/sh
if [ "$4" = check ]; then echo "$4 $6"; cp ../answer.json "$8"; else echo "$4 $6 $7 $8 $9"; fi
echo '```'; echo '{PLACE.format("x/rope", "0.31 of the limit")}'
[ "$6" != bad ]
"""
"""A stand-in for `nox -s check` and the like."""
FOUND = [
    {"kind": "summary", "solution": "x/rope", "tier": "smoke", "passed": 55, "failed": 12,
     "unsupported": 93, "failures": [{
         "verdict": "INCORRECT_NUMERICAL", "directions": ["forward"], "failed": 12, "case": "a",
         "place": ["rope.py", 46, "x"], "cause": "cos `|` sin"}]},
    {"kind": "summary", "solution": "x/rope", "tier": "board", "passed": 3, "failed": 0,
     "unsupported": 0},
]  # fmt: skip
"""What `check --json` writes."""
ROWS = """
| `x/rope` | smoke | 55 | 12 | 93 | `INCORRECT_NUMERICAL forward, 12 of the cases; rope.py:46;
 likely cause: cos '¦' sin; repeat: --case a` |
| `x/rope` | board | 3 | 0 | 0 | `0.31 of the limit` |
"""
README = "words\n<!-- board -->\nold\n<!-- /board -->\n"


def review(state="APPROVED", association="MEMBER", commit=COMMIT, login="maintainer"):
    """A review as GitHub gives it."""
    return {"user": {"login": login}, "state": state, "commit_id": commit,
            "author_association": association}  # fmt: skip


NOT_APPROVED = f"no maintainer has approved the commit {COMMIT}"


@pytest.mark.parametrize(
    ("reviews", "refusal"),
    [
        ([review(), review("COMMENTED")], ""),
        ([review(association="OWNER")], ""),
        ([], NOT_APPROVED),
        ([review(commit="f" * 40)], NOT_APPROVED),
        ([review(association="CONTRIBUTOR")], NOT_APPROVED),
        ([review(), review("DISMISSED")], NOT_APPROVED),
        ([review(), review("CHANGES_REQUESTED", login="another")],
         "a maintainer has requested changes"),
    ],
)  # fmt: skip
def test_a_maintainers_last_word_on_this_commit_decides(reviews, refusal):
    ran = subprocess.run([sys.executable, GITHUB / "approved.py", COMMIT], text=True,
                         input=json.dumps([reviews]), capture_output=True)  # fmt: skip
    assert (ran.returncode, ran.stderr.strip()) == (bool(refusal), refusal)


@pytest.fixture
def proposed(tmp_path):
    """A function that adds files to a branch, and returns the code and the text of the check."""
    tree = tmp_path / "tree"
    git = functools.partial(run_git, tree)
    (tree / "contributors" / "old").mkdir(parents=True)
    (tree / "contributors" / "old" / "rope.py").write_text("def rope(): ...")
    (tree / "README.md").write_text(README)
    (tmp_path / "answer.json").write_text(json.dumps(FOUND))
    (tmp_path / "python3").write_text(PYTHON)
    (tmp_path / "python3").chmod(0o755)
    git("init", "-q", "-b", "main")
    git("add", ".")
    git("commit", "-qm", "one")
    git("switch", "-qc", "proposal")

    def proposed(*names, text="def rope(): ...", link=None):
        for name in names:
            path = tree / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(link) if link else path.write_text(text)
        git("add", ".")
        git("commit", "-qm", "two")
        summary = tmp_path / "summary.md"
        path = f"{tmp_path}:{os.environ['PATH']}"
        # a runner has nox alone when it starts
        command = [sys.executable, "-I", "-S", GITHUB / "check_folders.py", "main", summary]
        ran = subprocess.run(command, cwd=tree, env=environment(PATH=path), capture_output=True)
        return ran.returncode, summary.read_text()

    return proposed


def test_each_folder_is_checked_once_and_placed(proposed):
    code, summary = proposed("contributors/bad/rope.py", "contributors/김철수/rope.py",
                             "contributors/김철수/README.md", "common/x.py")  # fmt: skip
    assert code == 1
    lines = [line.strip() for line in summary.splitlines() if line.startswith("    ")]
    assert [line for line in lines if line != "```" and "modelled" not in line] == [
        "check bad", "check 김철수",
        "bench --device cpu --op rope", "leaderboard --op rope --only 김철수",
    ]  # fmt: skip
    assert "    ```" in summary, "what a solution prints stays text"
    assert ROWS.replace(";\n", ";") in summary


@pytest.mark.parametrize("handle", ["--only", "$(touch x)", "a b", "..a", "a'b", "_alice"])
def test_a_name_that_is_no_handle_is_not_run(proposed, handle):
    code, summary = proposed(f"contributors/{handle}/rope.py", "contributors/bob/rope.py")
    assert code == 1
    assert f"\n    contributors/{handle}: " in summary
    assert summary.count("    check ") == summary.count("    check bob") == 1


@pytest.mark.parametrize(
    ("name", "file", "says"),
    [
        ("contributors/alice/x.py", {"link": "/home/x.py"}, "is a link out of contributors/"),
        ("docs/plots/gpu/overview.svg", {}, "\n    git checkout main -- docs/plots/gpu/overview"),
        ("README.md", {"text": README.replace("old", "new")}, "\n    git checkout main -- README"),
        ("README.md", {"text": README.replace("words", "new words")}, ""),
    ],
)
def test_a_link_out_and_what_main_draws_are_refused(proposed, name, file, says):
    proposed("contributors/alice/rope.py")
    code, summary = proposed(name, **file)
    assert code == bool(says)
    assert says in summary and (says or "git checkout" not in summary)
