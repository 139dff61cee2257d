"""triton-viz: can the formulas of a kernel's addresses leave a tensor? It needs no GPU.

`sandbox/alone/symbolic.py` runs it on one solution; this module starts that program and reads its
answers.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from common.errors import UserError
from common.paths import ROOT
from common.solutions import Solution
from common.spec import Case
from common.tools import child

NAME = "triton-viz"
NOTHING = "nothing found"


@dataclass(frozen=True)
class Answer:
    """The accesses of one case that can leave their tensor, and why the analysis stopped, if so."""

    case: str
    found: list[str]
    stopped: str

    def __str__(self) -> str:
        """Return one line: `reads outside of x, line 18 of rope.py; cannot follow: no loops`."""
        stopped = [f"cannot follow: {self.stopped}"] * bool(self.stopped)
        return "; ".join([*self.found, *stopped]) or NOTHING


def require() -> None:
    """Raise UserError if triton-viz is not installed."""
    if not importlib.util.find_spec("triton_viz"):
        raise UserError(f"{NAME} is not installed: nox -s sanitize -- --tool {NAME} brings it")


def sanitize(tool: str, solution: Solution, cases: Sequence[Case], verbose: bool) -> bool:
    """Print a line for each case; return whether nothing was found.

    A kernel that triton-viz cannot follow is no failure.
    """
    clean = True
    for answer in _answers(solution, cases, verbose):
        clean = clean and not answer.found
        print(f"{tool} {solution.name} {answer.case}: {answer}", flush=True)
    return clean


def _answers(solution: Solution, cases: Sequence[Case], verbose: bool) -> Iterator[Answer]:
    """Yield an answer for each case as it comes; raise UserError if the program fails."""
    names = (case.name for case in cases)
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(
            child.command("common.sandbox.alone.symbolic", solution, *names),
            cwd=ROOT,
            env=child.environment(TRITON_INTERPRET="1"),
            stdout=subprocess.PIPE,
            stderr=None if verbose else said,
            text=True,
        ) as process,
    ):
        yield from (Answer(**json.loads(line)) for line in process.stdout or ())
        if process.wait():
            raise UserError(f"{NAME} does not run here: {child.last_line(_read(said))}")


def _read(file: IO[str]) -> str:
    file.seek(0)
    return file.read()
