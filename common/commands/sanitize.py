"""`study sanitize`: NVIDIA's compute-sanitizer, which finds faults that the grader misses."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence

from common.commands import options as shared
from common.errors import UserError
from common.paths import ROOT
from common.solutions import Solution

SAMPLE = 12
"""The default number of smoke cases of an op; the tools slow a kernel down fifty times."""
EXECUTABLE = "compute-sanitizer"
OPTIONS = (
    "--print-limit", "1000",
    "--target-processes", "application-only",  # not ptxas and the like
    "--launch-timeout", "120",  # until CUDA is initialized: torch is imported first
    "--destroy-on-device-error", "kernel",  # so that the cases after a fault are called too
    "--show-backtrace", "device",
)  # fmt: skip
TOOLS = {
    # torch makes CUDA calls that may fail; the padding keeps an overrun out of the next allocation
    "memcheck": ("--report-api-errors", "no", "--padding", "4096"),
    "racecheck": (),
}
"""The options of each tool."""
SETTINGS = {
    "TRITON_INTERPRET": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",  # each tensor is a separate allocation
    "TRITON_DISABLE_LINE_INFO": "0",  # reports on Triton's kernels name a line of Python
}
SUMMARY = re.compile(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (\d+) (?!.*not printed)", re.MULTILINE)
ON_KERNEL = re.compile(r"__(?:global|shared|local)__|Race reported")
REPORT = re.compile(r"^=+ (?!COMPUTE-SANITIZER|\w+ SUMMARY:)\S.*(?:\n=+  .*)*", re.MULTILINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tool and the sample."""
    shared.add(parser, *shared.RUNNING, "--sample")
    parser.add_argument("--tool", choices=tuple(TOOLS), help="default: both")


def run(options: argparse.Namespace) -> int:
    """Run NVIDIA's compute-sanitizer over smoke cases, on a GPU."""
    chosen, device = shared.contributors(options), shared.gpu(options)
    from common.grading.device import tier_cases

    of_op = tier_cases(chosen, "smoke", device, options.sample or SAMPLE)
    clean = [
        sanitize(tool, solution, [case.name for case in cases], options.verbose)
        for op, cases in of_op
        for solution in chosen
        if solution.op == op.name
        for tool in ([options.tool] if options.tool else TOOLS)
    ]
    return int(not all(clean))


def sanitize(tool: str, solution: Solution, cases: Sequence[str], verbose: bool) -> bool:
    """Print what the tool reports on the solution; return whether it is clean.

    A report on a kernel that names no line of Python is on a library's kernel, and is no fault.

    Raises:
        UserError: The tool is not installed, or does not run here.
    """
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    if not (executable := shutil.which(EXECUTABLE) or shutil.which(f"{home}/bin/{EXECUTABLE}")):
        raise UserError(f"{EXECUTABLE} is neither on PATH nor in {home}/bin: CUDA's toolkit has it")
    call = (sys.executable, "-m", "common.sandbox.standalone", str(solution.path), solution.op)
    command = [executable, "--tool", tool, *OPTIONS, *TOOLS[tool], *call, *cases]
    ran = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **SETTINGS}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    output, reports = ran.stdout, REPORT.findall(ran.stdout)
    if not (counts := SUMMARY.findall(output)):
        lines = [line for line in output.splitlines() if line.strip(" =")] or ["it printed nothing"]
        line = next((line for line in lines if "error" in line.lower()), lines[-1]).strip(" =")
        raise UserError(f"{EXECUTABLE} --tool {tool} reported no result: {line}")
    own = [report for report in reports if ".py:" in report or not ON_KERNEL.search(report)]
    libraries, called = len(reports) - len(own), output.count(": called\n")
    found = sum(map(int, counts)) - libraries
    others = f", {libraries} in libraries" * bool(libraries)
    ended = f", ended with {ran.returncode}" * bool(ran.returncode)
    print(f"{tool} {solution.name}: {found or 'nothing'} found{others}, ", end="")
    print(f"{called} of {len(cases)} cases called{ended}")
    for text in [output] if verbose else own[:3]:  # further ones are mostly alike
        print(text, flush=True)
    return not found and not ran.returncode
