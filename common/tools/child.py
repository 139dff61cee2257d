"""The command line and the environment of a process that a tool examines."""

from __future__ import annotations

import os
import sys

from common.paths import ROOT
from common.solutions import Solution


def command(module: str, solution: Solution, *arguments: str) -> list[str]:
    """Return the command that runs a module of `sandbox/standalone` without a tool."""
    return [sys.executable, "-m", module, str(solution.path), solution.op, *arguments]


def environment(**settings: str) -> dict[str, str]:
    """Return this process's environment plus the settings; `common` is importable in it."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"} | settings


def last_line(output: str) -> str:
    """Return the first line that names an error, otherwise the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip(" =")]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors[:1] or lines[-1:] or ["it printed nothing"])[0]
