"""The house's own promises: the files of house/, in a process of their own."""

import os
import sys

import pytest

from common.paths import ROOT
from tests.support.processes import run
from tests.support.waiting import LONGEST

pytestmark = pytest.mark.slow

FOLDER = ROOT / "tests" / "contributors" / "house"
FILES = sorted(file for file in FOLDER.glob("*.py") if file.stem != "conftest")


def test_house(seed, pytestconfig):
    """The interpreter is chosen when Triton is imported, and its patches cannot be taken back."""
    folders = os.pathsep.join(map(str, (ROOT, ROOT / "contributors" / "house")))
    command = "-m pytest -q -n 0 -p no:cacheprovider --seed".split()
    options = ["--write-docs"] * pytestconfig.getoption("write_docs")
    how = {"env": os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": folders}, "cwd": ROOT}
    words = *command, str(seed), *options, *FILES
    done = run(sys.executable, *words, timeout=10 * LONGEST, **how)
    if done.returncode:
        pytest.fail(done.stdout[-5000:] + done.stderr[-1000:], pytrace=False)
