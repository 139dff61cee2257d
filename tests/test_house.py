"""The house's own promises: each file of tests/house runs in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from common.paths import ROOT

FILES = sorted((ROOT / "tests" / "house").glob("*.py"))
COMPILED = ("compiled", "graphs")
"""The files that look at Triton's compiler; the others run kernels in its interpreter."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_house(file):
    """The interpreter is chosen when Triton is imported, and its patches cannot be taken back."""
    folders = os.pathsep.join(map(str, (ROOT, ROOT / "contributors" / "house")))
    interpreted = str(int(file.stem not in COMPILED))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", file],
        env=os.environ | {"TRITON_INTERPRET": interpreted, "PYTHONPATH": folders},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode:
        pytest.fail(done.stdout[-5000:] + done.stderr[-1000:], pytrace=False)
