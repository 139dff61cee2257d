"""A process that calls one solution under a tool."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from common.paths import ROOT
from common.solutions import Solution


def run(
    tool: Sequence[str],
    solution: Solution,
    direction: str,
    cases: Sequence[str],
    settings: Mapping[str, str],
    warm_up: int = 0,
) -> tuple[str, int]:
    """Run `sandbox/standalone.py` under a tool; return its output and exit status."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    called = (str(solution.path), solution.op, direction, str(warm_up), *cases)
    ran = subprocess.run(
        [*tool, sys.executable, "-m", "common.sandbox.standalone", *called],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    return ran.stdout, ran.returncode


def last_line(output: str) -> str:
    """Return the first line that names an error, otherwise the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip(" =")]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors[:1] or lines[-1:] or ["it printed nothing"])[0]
