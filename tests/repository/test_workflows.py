"""What the workflows promise, and their scripts; `nox -s lint` checks them by their schema."""

import functools
import json
import os
import subprocess
import sys

import pytest
import yaml

from common.paths import ROOT
from tests.support.git import environment
from tests.support.git import git as run_git

GITHUB = ROOT / ".github"
SCRIPT = GITHUB / "check_folders.py"
STUB = """#!/bin/sh
echo "$4 $6 $7 $8 $9"; echo '```' ; echo '<b>'
[ "$6" != bad ]
"""
COMMIT, OTHER = "0123456789" * 4, "f" * 40


def workflow(name):
    """The workflow; YAML 1.1 reads its `on` as a truth."""
    read = yaml.safe_load((GITHUB / "workflows" / f"{name}.yml").read_text())
    return read | {"on": read[True]}


def jobs():
    """Every job by its workflow's name and its own."""
    names = sorted(path.stem for path in (GITHUB / "workflows").glob("*.yml"))
    return {(name, job): each for name in names for job, each in workflow(name)["jobs"].items()}


def commands(job):
    return "\n".join(step.get("run", "") for step in job.get("steps", ()))


# --- promises -------------------------------------------------------------------------------------


def test_no_workflow_may_write_but_where_a_job_says_so():
    for name in ("test", "pages", "gpu"):
        assert workflow(name)["permissions"] == {"contents": "read"}
    writing = {of: {what for what, how in job.get("permissions", {}).items() if how == "write"}
               for of, job in jobs().items()}  # fmt: skip
    assert {of: what for of, what in writing.items() if what} == {
        ("pages", "draw"): {"contents"},
        ("pages", "deploy"): {"pages", "id-token"},
        ("gpu", "board"): {"contents", "pages", "id-token"},
    }


def test_what_may_write_runs_no_solution():
    runs = [commands(jobs()["pages", name]) for name in ("draw", "deploy")]
    assert runs == [
        "\n".join(["", "", "", "python3 -m pip install nox && python3 -m nox -s leaderboard",
                   "bash .github/commit-boards main", ""]),
        "",
    ]  # fmt: skip
    assert jobs()["gpu", "board"]["uses"] == "./.github/workflows/pages.yml"
    assert "steps" not in jobs()["gpu", "board"]


def test_no_secret_is_given_to_anything():
    for path in (GITHUB / "workflows").glob("*.yml"):
        text = path.read_text()
        assert "secrets" not in text
        assert "pull_request_target" not in text  # which runs with main's rights


def test_nothing_that_runs_solutions_has_a_token():
    for of in [("test", "test"), ("test", "check"), ("gpu", "measure")]:
        job = jobs()[of]
        (checkout,) = (step for step in job["steps"] if "checkout" in step.get("uses", ""))
        assert checkout["with"]["persist-credentials"] is False
        assert "token" not in json.dumps(job).lower()


def test_a_pull_request_runs_what_main_runs():
    """It once ran `check` alone, and main turned red at the merge."""
    on = workflow("test")["on"]
    assert on == {"push": {"branches": ["main"]}, "pull_request": None}
    test = jobs()["test", "test"]
    assert "if" not in test
    assert test["strategy"]["matrix"]["sessions"] == ["test lint", "harness", "cluster"]


def test_the_boards_are_drawn_where_they_are_committed_and_published():
    pages = workflow("pages")
    assert pages["on"]["push"] == {"branches": ["main"]}
    assert pages["concurrency"] == {"group": "pages"}
    steps = [step.get("run") or step["uses"] for step in jobs()["pages", "draw"]["steps"]]
    assert [step.split("@")[0] for step in steps][-3:] == [
        "python3 -m pip install nox && python3 -m nox -s leaderboard",
        "bash .github/commit-boards main",
        "actions/upload-pages-artifact",
    ]
    drawing = [of for of, job in jobs().items() if "-s leaderboard" in commands(job)]
    assert drawing == [("pages", "draw")]


def test_a_gpu_is_given_to_a_pull_request_by_a_maintainer_alone():
    gpu = workflow("gpu")
    assert set(gpu["on"]) == {"schedule", "workflow_dispatch"}  # no event of a pull request
    approved, measure = jobs()["gpu", "approved"], jobs()["gpu", "measure"]
    assert measure["needs"] == "approved"
    assert [step["if"] for step in approved["steps"]] == ["inputs.pull"] * 2
    assert 'approved.py "$COMMIT"' in commands(approved)
    assert "pipefail" in commands(approved)
    assert measure["environment"] == "${{ inputs.pull && 'pull-request-on-gpu' || 'gpu' }}"
    assert approved["if"] == "vars.GPU_RUNNER" and measure["runs-on"] == "${{ vars.GPU_RUNNER }}"


def test_the_commit_that_was_approved_is_the_one_that_runs():
    measure = jobs()["gpu", "measure"]
    assert measure["steps"][0]["with"]["ref"] == "main"
    (pull,) = (step for step in measure["steps"] if step.get("id") == "pull")
    assert pull["if"] == "inputs.pull" and 'take_pull.py "$PULL" "$COMMIT"' in pull["run"]
    assert pull["env"] == {"PULL": "${{ inputs.pull }}", "COMMIT": "${{ inputs.commit }}"}
    (bench,) = (step for step in measure["steps"] if "-s bench" in step.get("run", ""))
    assert bench["env"] == {"ONLY": "${{ steps.pull.outputs.only }}"}
    line = bench["run"].removeprefix("python3 -m nox -s bench -- ")
    for only, words in (("", []), ("alice,bob", ["--only", "alice,bob"])):
        echo = ["bash", "-c", f"printf '%s\\n' {line}"]
        ran = subprocess.run(echo, capture_output=True, text=True, env=os.environ | {"ONLY": only})
        assert ran.stdout.split() == ["--device", "cuda", "--missing", *words]


def test_new_records_alone_are_handed_on(tmp_path):
    (folder := tmp_path / "results" / "gpu").mkdir(parents=True)
    (tmp_path / ".gitignore").write_text("*.samples.jsonl\n")
    (folder / "old.jsonl").touch()
    run_git(tmp_path, "init", "-q")
    run_git(tmp_path, "add", ".")
    run_git(tmp_path, "commit", "-qm", "one")
    for name in ("new.jsonl", "new.samples.jsonl"):
        (folder / name).touch()
    (step,) = (job for job in jobs()["gpu", "measure"]["steps"] if job.get("id") == "record")
    said = tmp_path / "said"
    subprocess.run(["bash", "-e", "-c", step["run"]], cwd=tmp_path, check=True,
                   env=environment(GITHUB_OUTPUT=str(said)))  # fmt: skip
    assert said.read_text() == "found=1\n"
    assert [path.name for path in (tmp_path / "record").rglob("*.jsonl")] == ["new.jsonl"]


# --- who may approve ------------------------------------------------------------------------------


def review(state="APPROVED", commit=COMMIT, login="maintainer", association="MEMBER"):
    return {"user": {"login": login}, "state": state, "commit_id": commit,
            "author_association": association}  # fmt: skip


def verdict(*pages, commit=COMMIT):
    ran = subprocess.run([sys.executable, GITHUB / "approved.py", commit], input=json.dumps(pages),
                         capture_output=True, text=True)  # fmt: skip
    return ran.returncode, ran.stderr.strip()


@pytest.mark.parametrize("association", ["OWNER", "MEMBER", "COLLABORATOR"])
def test_a_maintainers_approval_of_this_commit_counts(association):
    assert verdict([review("COMMENTED")], [review(association=association)]) == (0, "")
    assert verdict([review(), review("COMMENTED")]) == (0, "")


@pytest.mark.parametrize(
    "reviews",
    [
        [],
        [review(commit=OTHER)],
        [review("COMMENTED")],
        [review("DISMISSED")],
        [review(association="CONTRIBUTOR")],
        [review(association="NONE")],
        [review(), review("DISMISSED")],
        [review(), review(commit=OTHER)],
    ],
)
def test_nothing_else_does(reviews):
    assert verdict(reviews) == (1, f"no maintainer has approved the commit {COMMIT}")


def test_a_maintainer_who_wants_changes_is_heard():
    reviews = [review(login="another"), review("CHANGES_REQUESTED")]
    assert verdict(reviews) == (1, "a maintainer has requested changes")


@pytest.mark.parametrize("commit", ["", "main", COMMIT[:-1], COMMIT.replace("0", "A")])
def test_a_commit_has_forty_digits(commit):
    code, said = verdict([review(commit=commit)], commit=commit)
    assert code == 1 and "give all 40 digits" in said


# --- the check of a pull request's folders --------------------------------------------------------


@pytest.fixture
def proposed(tmp_path):
    """A repository with a branch that adds these files, and the summary of the check."""

    tree = tmp_path / "tree"
    git = functools.partial(run_git, tree)
    (tree / "contributors" / "old").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text(STUB)
    (tmp_path / "bin" / "python3").chmod(0o755)
    (tree / "contributors" / "old" / "rope.py").write_text("def rope(): ...")
    for name in ("README.md", "LEADERBOARD.md"):
        (tree / name).write_text("words\n<!-- board -->\nold\n<!-- /board -->\n")
    git("init", "-q", "-b", "main")
    git("add", ".")
    git("commit", "-qm", "one")
    git("switch", "-qc", "proposal")

    def proposed(*names, text="def rope(): ...", links=()):
        for name in names:
            path = tree / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for name, target in links:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).symlink_to(target)
        git("add", ".")
        git("commit", "-qm", "two", "--allow-empty")
        summary = tmp_path / "summary.md"
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        ran = subprocess.run([sys.executable, SCRIPT, "main", summary], cwd=tree,
                             env=environment(PATH=path), capture_output=True,
                             text=True)  # fmt: skip
        return ran.returncode, summary.read_text() if summary.exists() else ran.stderr

    return proposed


def test_each_folder_that_a_proposal_touches_is_checked_once(proposed):
    code, summary = proposed("contributors/alice/rope.py", "contributors/alice/README.md",
                             "contributors/김철수/rotate_half.py", "common/x.py")  # fmt: skip
    assert code == 0, summary
    assert [line.split() for line in summary.splitlines() if line.startswith("    check")] == [
        ["check", "alice"], ["check", "김철수"],
    ]  # fmt: skip
    assert "## alice" in summary and "old" not in summary


def test_a_folder_that_passes_is_placed_by_its_modelled_time(proposed):
    _, summary = proposed("contributors/alice/rope.py", "contributors/alice/rotate_half.py")
    said = [line.strip() for line in summary.splitlines() if line.startswith("    ")]
    assert [line for line in said if line not in ("```", "<b>")] == [
        "check alice",
        "bench --device cpu --op rope", "leaderboard --op rope --only alice",
        "bench --device cpu --op rotate_half", "leaderboard --op rotate_half --only alice",
    ]  # fmt: skip
    assert "`nox -s bench -- --device cpu --op rope`" in summary


def test_a_failing_folder_fails_the_job_and_the_others_are_checked(proposed):
    code, summary = proposed("contributors/bad/rope.py", "contributors/good/rope.py")
    assert code == 1
    assert "    check bad" in summary and "    check good" in summary
    assert "leaderboard --op rope --only bad" not in summary


def test_what_a_solution_prints_stays_text_in_the_summary(proposed):
    _, summary = proposed("contributors/alice/rope.py")
    assert "\n    ```\n    <b>\n" in summary


@pytest.mark.parametrize(
    "handle",
    ["--only", "$(touch x)", "a b", "a;b", "..a", "`id`", "a'b", 'a"b', "_alice", "al\nice"],
)
def test_a_name_that_is_no_handle_is_not_run_and_fails(proposed, handle):
    """It once passed: no contributor's folder is touched."""
    code, summary = proposed(f"contributors/{handle}/rope.py", "contributors/bob/rope.py")
    assert code == 1
    assert "a handle has letters, digits, - and _" in summary
    shown = handle if handle.isprintable() else ascii(handle)
    assert f"\n    contributors/{shown}: " in summary
    assert [line.split() for line in summary.splitlines() if line.startswith("    check")] == [
        ["check", "bob"]
    ]


@pytest.mark.parametrize("handle", ["Old", "OLD"])
def test_a_name_that_differs_from_anothers_in_case_alone_fails(proposed, handle):
    code, summary = proposed(f"contributors/{handle}/rope.py")
    assert code == 1
    assert f"{handle}: rename the folder, it differs from old only in case" in summary


def test_a_name_that_would_hide_anothers_fails_too(proposed):
    code, summary = proposed("contributors/Carol/rope.py", "contributors/carol/rope.py")
    assert code == 1
    assert "contributors/Carol: rename the folder" in summary and "    check carol" in summary


@pytest.mark.parametrize("link", ["contributors/alice", "contributors/alice/kernels.py"])
def test_a_link_out_of_the_repository_fails(proposed, link):
    code, summary = proposed(links=[(link, "/home/alice/kernels")])
    assert code == 1
    assert "is a link out of contributors/" in summary and "check" not in summary


def test_a_proposal_without_a_folder_says_so(proposed):
    assert proposed("common/x.py") == (0, "No contributor's folder is touched.\n")
    assert proposed("contributors/_template/rope.py")[0] == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("LEADERBOARD.md", "drawn"),
        ("docs/plots/gpu/overview.svg", "drawn"),
        ("README.md", "words\n<!-- board -->\nnew\n<!-- /board -->\n"),
    ],
)
def test_what_main_draws_is_to_be_taken_back(proposed, name, text):
    proposed("contributors/alice/rope.py")
    code, summary = proposed(name, text=text)
    assert code == 1
    assert f"\n    git checkout main -- {name}\n" in summary


def test_words_of_a_readme_are_no_drawing(proposed):
    proposed("contributors/alice/rope.py")
    code, _ = proposed("README.md", text="new words\n<!-- board -->\nold\n<!-- /board -->\n")
    assert code == 0


def test_the_script_needs_no_package():
    """A runner has nox alone when it starts."""
    code = f"import runpy; runpy.run_path({str(SCRIPT)!r})"
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
