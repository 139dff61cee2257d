"""NVIDIA's compute-sanitizer and triton-viz, which look for faults in a solution's kernels.

compute-sanitizer checks every access on a GPU. It runs `sandbox/standalone/smoke.py`, a process
that grades nothing and ends by itself: the tool reports only when its process ends, and the harness
kills its workers.

triton-viz needs no GPU: it checks whether the formulas of a kernel's addresses can leave a tensor.
`sandbox/standalone/symbolic.py` runs it on one solution.
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
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import UserError
from common.paths import ROOT
from common.solutions import Solution
from common.spec import Case
from common.tools import child

TOOLS = ("memcheck", "racecheck", "initcheck")
SYMBOLIC = "triton-viz"
NOTHING = "nothing found"
EXECUTABLE = "compute-sanitizer"
OPTIONS = (
    "--target-processes", "application-only",  # not ptxas and the like
    "--launch-timeout", "120",  # until CUDA is initialized: torch is imported first
    "--destroy-on-device-error", "kernel",  # so that the cases after a fault are called too
    "--show-backtrace", "device",
)  # fmt: skip
TOOL_OPTIONS = {
    "memcheck": (
        "--print-limit", "1000",
        "--report-api-errors", "no",  # torch makes CUDA calls that may fail
        "--padding", "4096",  # keeps an overrun out of the next allocation
    ),
    "racecheck": ("--print-limit", "1000"),
    # no print limit: reports on libraries would use up any limit
    "initcheck": ("--print-limit", "0"),
}  # fmt: skip
SETTINGS = {
    "TRITON_INTERPRET": "0",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",  # each tensor is a separate allocation
    "TRITON_DISABLE_LINE_INFO": "0",  # reports on Triton's kernels name a line of Python
}
SECONDS = 900
"""The time limit of one tool for one solution, in seconds."""
MAX_REPORTS = 3
"""The most reports of a tool on a solution that are printed without `--verbose`."""


def sanitize(tool: str, solution: Solution, cases: Sequence[Case], verbose: bool) -> bool:
    """Print what the tool finds in the solution; return whether it is clean.

    Raises:
        UserError: The tool is not installed, or does not run here.
    """
    if tool == SYMBOLIC:
        return _sanitize_symbolically(solution, cases, verbose)
    names = (case.name for case in cases)
    program = child.command("common.sandbox.standalone.smoke", solution, *names)
    command = [executable(), "--tool", tool, *OPTIONS, *TOOL_OPTIONS[tool], *program]
    output, code = _run(command, child.environment(**SETTINGS))
    report = read(output)
    if report is None and code is not None:
        line = child.last_line(output).strip(" =")
        raise UserError(f"{EXECUTABLE} --tool {tool} reported no result: {line}")
    ended = {0: "", None: f", no end within {SECONDS} s"}.get(code, f", ended with {code}")
    called = f"{len(CALLED.findall(output))} of {len(cases)} cases called"
    print(f"{tool} {solution.name}: {report or NOTHING}, {called}{ended}", flush=True)
    if verbose:
        print(output)
    elif report and report.blocks:
        print(*report.blocks[:MAX_REPORTS], sep="\n")
    return not ended and report is not None and not report.found


def executable() -> str:
    """Return the program's path, from PATH or from CUDA's toolkit.

    Raises:
        UserError: It is in neither.
    """
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), f"{home}/bin"])
    if found := shutil.which(EXECUTABLE, path=path):
        return found
    raise UserError(f"{EXECUTABLE} is neither on PATH nor in {home}/bin: CUDA's toolkit has it")


def _run(command: Sequence[str], environment: dict[str, str]) -> tuple[str, int | None]:
    """Return the output and the exit status, which is None if the time limit expired."""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that its child processes can be killed with it
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


# --- reports --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SanitizerReport:
    """A tool's counts, and its reports on the solution's own kernels.

    A report is on a library's kernel if it names no line of Python and matches IN_A_LIBRARY.
    Libraries read and copy uninitialized memory on purpose, so these reports are not faults.
    """

    found: int
    libraries: int
    blocks: list[str]

    def __str__(self) -> str:
        """Return the counts as one phrase: `2 found, 1 in libraries`."""
        count = f"{self.found} found" if self.found else NOTHING
        return f"{count}, {self.libraries} in libraries" if self.libraries else count


CALLED = re.compile(r": called$", re.MULTILINE)
SUMMARY = re.compile(
    r"^=+ (?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards? displayed)\b(?! were not printed)",
    re.MULTILINE,
)
BLOCK = re.compile(r"^=+ \S.*(?:\n=+  .*)*", re.MULTILINE)
BANNER = re.compile(r"COMPUTE-SANITIZER|SUMMARY:")
IN_A_LIBRARY = re.compile(r"__(?:global|shared|local)__|Race reported|Uninitialized .* cudaMemcpy")
PYTHON_LINE = re.compile(r"\.py:\d+")


def read(output: str) -> SanitizerReport | None:
    """Return the report in a tool's output, or None if the output has no summary."""
    counted = [int(number) for number in SUMMARY.findall(output)]
    if not counted:
        return None
    blocks = [block for block in BLOCK.findall(output) if not BANNER.search(block)]
    own = [block for block in blocks if PYTHON_LINE.search(block) or not IN_A_LIBRARY.search(block)]
    libraries = len(blocks) - len(own)
    return SanitizerReport(sum(counted) - libraries, libraries, own)


# --- triton-viz -----------------------------------------------------------------------------------


def _sanitize_symbolically(solution: Solution, cases: Sequence[Case], verbose: bool) -> bool:
    """Print a line for each case as its answer arrives; return whether nothing was found.

    A kernel that triton-viz cannot follow is no failure.
    """
    if not importlib.util.find_spec("triton_viz"):
        raise UserError(
            f"{SYMBOLIC} is not installed: nox -s sanitize -- --tool {SYMBOLIC} brings it"
        )
    clean, names = True, (case.name for case in cases)
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            child.command("common.sandbox.standalone.symbolic", solution, *names),
            cwd=ROOT,
            env=child.environment(TRITON_INTERPRET="1"),
            stdout=subprocess.PIPE,
            stderr=None if verbose else errors,
            text=True,
        ) as process,
    ):
        for line in process.stdout or ():
            answer = json.loads(line)
            stopped = [f"cannot follow: {answer['stopped']}"] * bool(answer["stopped"])
            findings = "; ".join([*answer["found"], *stopped]) or NOTHING
            print(f"{SYMBOLIC} {solution.name} {answer['case']}: {findings}", flush=True)
            clean = clean and not answer["found"]
        if process.wait():
            errors.seek(0)
            raise UserError(f"{SYMBOLIC} does not run here: {child.last_line(errors.read())}")
    return clean
