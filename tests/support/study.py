"""Fixtures for the command line: `study` in a copy of the repository, without a GPU.

Nothing here touches the real results, README and leaderboard. The fixtures are a plugin, which
conftest.py names, so that no test module has to import them.
"""

import os
import shutil
import sys
from collections import namedtuple

import pytest
from msgspec.structs import replace

from common.paths import ROOT
from tests.support import boards, forked
from tests.support.processes import run
from tests.support.records import written
from tests.support.waiting import LONGEST

Ran = namedtuple("Ran", "code out err")

# On PYTHONPATH it takes the packages named in HIDDEN away, as if they had not been installed.
HIDE = "import os, sys; sys.modules.update(dict.fromkeys(os.environ.get('HIDDEN', '').split()))"

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
FOR_CUDA = '''"""an operator for CUDA alone"""
import torch

@torch.library.custom_op("alice::half", mutates_args=(), device_types="cuda")
def half(x: torch.Tensor) -> torch.Tensor:
    return -x

def rotate_half(x):
    return half(x)
'''


TERMINAL = ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""What a developer's terminal, or nox, says of colours and widths."""


def pytest_sessionstart():
    """Forget it, once pytest itself has read it: no test depends on where it is started."""
    for name in TERMINAL:
        os.environ.pop(name, None)


def environment(**others):
    """The environment of a command that sees no GPU."""
    return os.environ | {"CUDA_VISIBLE_DEVICES": ""} | others


def one_line(ran):
    """The complaint, which is all that stands on stderr."""
    assert ran.code not in (0, None)
    (line,) = ran.err.splitlines()
    assert line.startswith("study")
    return line


@pytest.fixture(scope="session")
def repository(tmp_path_factory):
    """A copy of the tree, with the packages' blocker beside it."""
    top = tmp_path_factory.mktemp("study")
    ignore = shutil.ignore_patterns("__pycache__")
    # only these folders: another contributor may have a name that a test gives
    for name in ("common", "contributors/_template", "contributors/house"):
        shutil.copytree(ROOT / name, top / "tree" / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "README.ko.md", "LICENSE"):
        shutil.copy(ROOT / name, top / "tree")
    (top / "hide").mkdir()
    (top / "hide" / "sitecustomize.py").write_text(HIDE)
    return top / "tree"


@pytest.fixture
def study(repository, tmp_path):
    """Run `study` in the copy, in a process of its own; a fresh one lacks `hidden` packages."""

    def study(*arguments, hidden="", timeout=LONGEST):
        words = [str(word) for word in arguments]
        if hidden:
            env = environment(HIDDEN=hidden, PYTHONPATH=str(repository.parent / "hide"))
            how = {"timeout": timeout, "cwd": repository, "env": env}
            ran = run(sys.executable, "-m", "common", *words, **how)
            return Ran(ran.returncode, ran.stdout, ran.stderr)
        code = forked.run("common", words, repository, tmp_path, environment(), timeout)
        return Ran(code, *((tmp_path / name).read_text() for name in ("out", "err")))

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
    """A record of a GPU that does not exist, and its removal with all that was drawn from it."""
    row = boards.row("house/rope", us=10.0, eager=25.0, host={})
    readmes = {path: path.read_text() for path in repository.glob("README*.md")}
    remove_drawn(repository)  # of a test without a record
    path = repository / "results" / "gpu" / "20261121T082930Z-r1.jsonl"
    written(path.parent, row, run=replace(boards.RUN, absent={}), name=path.name, end=False)
    yield path
    remove_drawn(repository)
    for readme, before in readmes.items():
        readme.write_text(before)


def remove_drawn(repository):
    """Remove the records, and all that was drawn from them but the boards in the READMEs."""
    for drawn in ("results", "docs", "site"):
        shutil.rmtree(repository / drawn, ignore_errors=True)
    (repository / "LEADERBOARD.md").unlink(missing_ok=True)
