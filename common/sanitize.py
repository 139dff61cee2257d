"""NVIDIA's compute-sanitizer over smoke cases: what guard bands and two runs cannot show."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence

from common.solutions import Fault

TOOLS = ("memcheck", "racecheck", "initcheck")
EXECUTABLE = "compute-sanitizer"


def sanitize(selection: Sequence[str], sample: int) -> bool:
    """Grade under each tool, which prints what it finds; was there nothing?"""
    if not shutil.which(EXECUTABLE):
        raise Fault(f"{EXECUTABLE} is not on the path: it comes with the CUDA toolkit")
    clean = True
    for tool in TOOLS:
        found = _errors(tool, selection, sample)
        print(f"{tool}: {found} errors")
        clean = clean and not found
    return clean


def _errors(tool: str, selection: Sequence[str], sample: int) -> int:
    """The errors that the tool counts over every process; its output is passed on."""
    study = [sys.executable, "-m", "common", "grade", "--device", "cuda", "--verbose"]
    command = [EXECUTABLE, "--tool", tool, "--target-processes", "all", *study]
    with subprocess.Popen(
        [*command, "--sample", str(sample), *selection],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout
        errors = summaries = 0
        for line in process.stdout:
            print(line, end="", flush=True)
            if summary := re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", line):
                errors, summaries = errors + int(summary[1]), summaries + 1
    if not summaries:
        raise Fault(f"{EXECUTABLE} --tool {tool} told of no result: see above")
    return errors
