"""The house's own promises: the files of house/, in two processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from common.paths import ROOT
from tests.support.waiting import LONGEST

pytestmark = pytest.mark.slow

FOLDER = ROOT / "tests" / "contributors" / "house"
COMPILED = ["compiled", "graphs"]
"""The files that look at Triton's compiler; the others run kernels in its interpreter."""
INTERPRETED = sorted({file.stem for file in FOLDER.glob("*.py")} - {*COMPILED, "conftest"})


@pytest.mark.parametrize("files", [COMPILED, INTERPRETED], ids="-".join)
def test_house(files, seed):
    """The interpreter is chosen when Triton is imported, and its patches cannot be taken back."""
    folders = os.pathsep.join(map(str, (ROOT, ROOT / "contributors" / "house")))
    paths = [FOLDER / f"{stem}.py" for stem in files]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider",
         "--seed", str(seed), *paths],
        env=os.environ | {"TRITON_INTERPRET": str(int(files != COMPILED)), "PYTHONPATH": folders},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=10 * LONGEST,
    )  # fmt: skip
    if done.returncode:
        pytest.fail(done.stdout[-5000:] + done.stderr[-1000:], pytrace=False)
