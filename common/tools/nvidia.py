"""NVIDIA's tools on a process that calls one solution; `ncu` counts the work of its kernels."""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

from common.paths import ROOT
from common.solutions import Solution
from common.spec import Case


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


# --- Nsight Compute -------------------------------------------------------------------------------

EXECUTABLE = "ncu"
ABSENT = "Nsight Compute (ncu) is not installed: its counters are left out."
COUNTERS = {
    "gpu__time_duration.sum": "ns",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "DRAM",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "SM",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy",
}
"""Nsight Compute's counters, and their names here: nanoseconds, then percentages."""
OPTIONS = (
    "--csv", "--print-units", "base",
    "--clock-control", "none",  # leave the GPU's clocks as they are
    "--profile-from-start", "off",  # the program says which call is counted
    "--metrics", ",".join(COUNTERS),
)  # fmt: skip
SHOWN = 4
"""The most kernels that are shown for one call."""
WARM_UP_CALLS = 3
Counts = dict[str, float]


def installed() -> bool:
    """Return whether `ncu` is on PATH."""
    return shutil.which(EXECUTABLE) is not None


def lines(solution: Solution, case: Case, direction: str) -> list[str]:
    """Return a line for each kernel of one call, slowest first, or the reason why there is none."""
    tool, settings = [EXECUTABLE, *OPTIONS], {"TRITON_INTERPRET": "0"}
    output, _ = run(tool, solution, direction, [case.name], settings, WARM_UP_CALLS)
    kernels = sorted(read(output), key=lambda kernel: -kernel[1]["ns"])
    shown = [_line(*kernel) for kernel in kernels[:SHOWN]]
    return shown or [last_line(output)]


def read(output: str) -> Iterator[tuple[str, Counts]]:
    """Yield name and counters of each launch in ncu's CSV, which may follow other output."""
    lines = output.splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    launches: dict[str, tuple[str, Counts]] = {}
    for cells in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        if name := COUNTERS.get(cells.get("Metric Name") or ""):
            kernel = launches.setdefault(cells["ID"], (cells["Kernel Name"], {}))
            kernel[1][name] = _number(cells["Metric Value"])
    yield from (launch for launch in launches.values() if len(launch[1]) == len(COUNTERS))


def _number(text: str) -> float:
    """Return 1234.5 for `1,234.5`, and NaN for a counter that ncu could not read (`n/a`)."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return float("nan")


def _line(name: str, counts: Counts) -> str:
    shares = ", ".join(f"{key} {value:.0f}%" for key, value in counts.items() if key != "ns")
    return f"{counts['ns'] / 1e3:9.1f} µs  {shares}  {name[:60]}"
