"""Sanitizers over smoke cases: what guard bands and two runs cannot show.

NVIDIA's compute-sanitizer looks at every access on a GPU; triton-viz asks, without one, whether the
formulas of a kernel's addresses can leave a tensor. Either looks at one solution at a time in a
process that grades nothing (`smoke.py`, `symbolic.py`): a worker is forked and killed, and
compute-sanitizer tells of a process when it ends by itself.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from common.errors import UserError
from common.paths import ROOT
from common.solutions import Solution
from common.spec import Case, Op

NVIDIA = ("memcheck", "racecheck", "initcheck")
SYMBOLIC = "triton-viz"
NOTHING = "nothing found"
EXECUTABLE = "compute-sanitizer"
OPTIONS = (
    "--target-processes", "application-only",  # ptxas and its like have nothing to show
    "--launch-timeout", "120",  # until CUDA is up: torch is imported first
    "--destroy-on-device-error", "kernel",  # the cases after a fault are called too
    "--show-backtrace", "device",
)  # fmt: skip
OF_TOOL = {
    "memcheck": (
        "--print-limit", "1000",
        "--report-api-errors", "no",  # torch asks CUDA what it may refuse
        "--padding", "4096",  # neighbours in memory are no place to land in
    ),
    "racecheck": ("--print-limit", "1000"),
    # a library's reports, by the hundred thousand, would hide all others
    "initcheck": ("--print-limit", "0"),
}  # fmt: skip
SECONDS = 900
"""For one tool and solution."""
SHOWN = 3
"""Reports of one tool on one solution, unless all are asked for."""


def sanitize(
    chosen: Sequence[Solution],
    cases_of: Iterable[tuple[Op[Any], Sequence[Case]]],
    tools: Sequence[str],
    verbose: bool = False,
) -> bool:
    """Print what each tool finds in each solution; was there nothing?"""
    if SYMBOLIC in tools and not importlib.util.find_spec("triton_viz"):
        hint = f"nox -s sanitize -- --tool {SYMBOLIC} brings it"
        raise UserError(f"{SYMBOLIC} is not installed: {hint}")
    clean = True
    for op, cases in cases_of:
        for solution in (each for each in chosen if each.op == op.name):
            for tool in tools:
                look = symbolic if tool == SYMBOLIC else nvidia
                clean = look(tool, solution, cases, verbose) and clean
    return clean


def _command(module: str, solution: Solution, cases: Iterable[Case]) -> list[str]:
    names = (case.name for case in cases)
    return [sys.executable, "-m", module, str(solution.path), solution.op, *names]


def _environment(**settings: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"} | settings


def _last_line(output: str) -> str:
    """What it came to: an error, or whatever was said last."""
    said = [line.strip(" =") for line in output.splitlines() if line.strip(" =")]
    errors = [line for line in said if "error" in line.lower()]
    return (errors[:1] or said[-1:] or ["it said nothing"])[0]


# --- triton-viz -----------------------------------------------------------------------------------


def symbolic(tool: str, solution: Solution, cases: Sequence[Case], verbose: bool) -> bool:
    """A line for each case; what triton-viz cannot follow is no failure."""
    clean = True
    with tempfile.TemporaryFile("w+") as said:
        with subprocess.Popen(
            _command("common.sandbox.alone.symbolic", solution, cases),
            cwd=ROOT,
            env=_environment(TRITON_INTERPRET="1"),
            stdout=subprocess.PIPE,
            stderr=None if verbose else said,
            text=True,
        ) as process:
            assert process.stdout
            for line in process.stdout:
                row = json.loads(line)
                clean = clean and not row["found"]
                what = told(row["found"], row["stopped"])
                print(f"{tool} {solution.name} {row['case']}: {what}", flush=True)
        if process.returncode:
            said.seek(0)
            raise UserError(f"{tool} does not run here: {_last_line(said.read())}")
    return clean


def told(found: Sequence[str], stopped: str) -> str:
    """`reads outside of x, line 18 of rope.py: tl.load(...); cannot follow: no block pointers`."""
    return "; ".join([*found, *([f"cannot follow: {stopped}"] if stopped else [])]) or NOTHING


# --- compute-sanitizer ----------------------------------------------------------------------------


def nvidia(tool: str, solution: Solution, cases: Sequence[Case], verbose: bool) -> bool:
    """A line for the solution, with what the tool reported of its kernels below."""
    options = (*OPTIONS, *OF_TOOL[tool])
    output, code = _ran(
        [
            executable(),
            "--tool",
            tool,
            *options,
            *_command("common.sandbox.alone.smoke", solution, cases),
        ],
        # each tensor is an allocation of its own, with its own end; kernels know their lines
        _environment(
            TRITON_INTERPRET="0", PYTORCH_NO_CUDA_MEMORY_CACHING="1", TRITON_DISABLE_LINE_INFO="0"
        ),
    )
    report = read(output)
    if report is None and code is not None:
        raise UserError(f"{EXECUTABLE} --tool {tool} told of no result: {_last_line(output)}")
    ended = {0: "", None: f", no end within {SECONDS} s"}.get(code, f", ended with {code}")
    what = str(report) if report else NOTHING
    called = f"{len(CALLED.findall(output))} of {len(cases)} cases called"
    print(f"{tool} {solution.name}: {what}, {called}{ended}", flush=True)
    if verbose:
        print(output)
    elif report:
        print(*report.blocks[:SHOWN], sep="\n", end="\n" if report.blocks else "")
    return not ended and report is not None and not report.found


def executable() -> str:
    """On the path or where CUDA's toolkit is."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), f"{home}/bin"])
    if found := shutil.which(EXECUTABLE, path=path):
        return found
    raise UserError(f"{EXECUTABLE} is neither on the path nor in {home}/bin: CUDA's toolkit has it")


def _ran(command: Sequence[str], environment: dict[str, str]) -> tuple[str, int | None]:
    """What it printed, and its exit status; None if it was ended because it did not end."""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that what it started ends with it
    ) as process:
        try:
            return process.communicate(timeout=SECONDS)[0], process.returncode
        except subprocess.TimeoutExpired:
            _end(process.pid)
            return process.communicate()[0], None
        finally:
            _end(process.pid)


def _end(session: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(session, signal.SIGKILL)


@dataclass(frozen=True)
class Report:
    """What a tool counted, and what it said of the solution's own kernels.

    Triton's kernels are told by the line of Python that a report names. Others are the libraries'
    that it calls: they read and copy what nobody wrote, and know it, so that theirs decide nothing.
    """

    found: int
    libraries: int
    blocks: list[str]

    def __str__(self) -> str:
        what = f"{self.found} found" if self.found else NOTHING
        return f"{what}, {self.libraries} in libraries" if self.libraries else what


CALLED = re.compile(r": called$", re.MULTILINE)
SUMMARY = re.compile(
    r"^=+ (?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards? displayed)\b(?! were not printed)",
    re.MULTILINE,
)
BLOCK = re.compile(r"^=+ \S.*(?:\n=+  .*)*", re.MULTILINE)
FRAME = re.compile(r"COMPUTE-SANITIZER|SUMMARY:")
IN_A_LIBRARY = re.compile(r"__(?:global|shared|local)__|Race reported|Uninitialized .* cudaMemcpy")
PYTHON_LINE = re.compile(r"\.py:\d+")


def read(output: str) -> Report | None:
    """None where the tool never summed up."""
    counted = [int(number) for number in SUMMARY.findall(output)]
    if not counted:
        return None
    blocks = [block for block in BLOCK.findall(output) if not FRAME.search(block)]
    ours = [b for b in blocks if PYTHON_LINE.search(b) or not IN_A_LIBRARY.search(b)]
    libraries = len(blocks) - len(ours)
    return Report(sum(counted) - libraries, libraries, ours)
