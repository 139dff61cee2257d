"""The notebook leads from a clone to a record; its cells are executed without Jupyter or a GPU."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from common.paths import ROOT
from tests.support import study
from tests.support.git import environment
from tests.support.git import git as run_git

pytestmark = pytest.mark.slow

NOTEBOOK = json.loads((ROOT / "docs" / "measure.ipynb").read_text())
NOX = """import os, sys
_, session, *words = sys.argv[1:]
os.execv(sys.executable, [sys.executable, "-m", "common", session, *words[1:]])
"""
"""A stand-in that installs nothing."""


def execute(cell, folder):
    """Run a cell as Jupyter does: lines that begin with `!` by the shell, others as Python."""
    source = "".join(cell["source"])
    if not source.startswith("!"):
        return exec(source, {})
    for line in source.splitlines():
        ran = subprocess.run(
            line.removeprefix("!"), shell=True, cwd=folder, capture_output=True, text=True
        )
        assert ran.returncode == 0, (line, ran.stdout, ran.stderr)


@pytest.fixture
def machine(repository, tmp_path, monkeypatch):
    """A machine with stand-ins for nox and pip, and the folder where the notebook lies."""
    origin = tmp_path / "origin"
    ignored = shutil.ignore_patterns("results", "site", ".cache", "__pycache__")
    shutil.copytree(repository, origin, ignore=ignored)
    (origin / "contributors" / "alice").mkdir()
    (origin / "contributors" / "alice" / "rotate_half.py").write_text(study.RIGHT)
    ignore = (ROOT / ".gitignore").read_text()
    assert "\nresults/cpu/\n" in ignore  # as if it were a GPU's
    (origin / ".gitignore").write_text(ignore.replace("\nresults/cpu/\n", "\n"))
    run_git(origin, "init", "-q", "-b", "main")
    run_git(origin, "add", ".")
    run_git(origin, "commit", "-qm", "one")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nox.py").write_text(NOX)
    (tmp_path / "bin" / "pip.py").touch()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # python3 is this one
    for name, value in environment(PYTHONPATH=str(tmp_path / "bin"), PATH=path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path


def test_the_notebook_leads_from_a_clone_to_a_record(machine, monkeypatch):
    cells = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    parameters, *others = cells
    execute(parameters, machine)
    assert os.environ["HANDLE"] == "alice" and os.environ["BRANCH"] == "main"
    monkeypatch.setenv("REPOSITORY", str(machine / "origin"))
    for cell in others:
        execute(cell, machine)
    with tarfile.open(machine / "record.tar.gz") as record:
        names = record.getnames()
    assert names and all(name.startswith("results/cpu/") for name in names)
    (run,) = (name for name in names if name.endswith(".jsonl"))
    text = (machine / "study" / run).read_text()
    assert '"solution":"alice/rotate_half"' in text


def test_the_notebook_holds_no_output():
    assert not any(cell.get("outputs") for cell in NOTEBOOK["cells"])
