"""NVIDIA's tools on a process that calls one solution; `ncu` counts the work of its kernels."""

from __future__ import annotations

import contextlib
import csv
import math
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence

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
    fixed = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "TRITON_INTERPRET": "0"}
    called = (str(solution.path), solution.op, direction, str(warm_up), *cases)
    ran = subprocess.run(
        [*tool, sys.executable, "-m", "common.sandbox.standalone", *called],
        cwd=ROOT,
        env={**os.environ, **fixed, **settings},
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


def installed() -> bool:
    """Return whether `ncu` is on PATH."""
    return shutil.which(EXECUTABLE) is not None


def lines(solution: Solution, case: Case, direction: str) -> list[str]:
    """Return a line for each kernel of one call, slowest first, or the reason why there is none."""
    tool = [EXECUTABLE, *OPTIONS]
    output, _ = run(tool, solution, direction, [case.name], {}, WARM_UP_CALLS)
    return kernels(output) or [last_line(output)]


def kernels(output: str) -> list[str]:
    """Return a line for each launch in ncu's CSV, which may follow other output, slowest first."""
    text = output.splitlines()
    start = next((n for n, line in enumerate(text) if line.startswith('"ID"')), len(text))
    launches: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for cells in csv.DictReader(text[start:]):
        if counter := COUNTERS.get(cells.get("Metric Name") or ""):
            number = math.nan
            with contextlib.suppress(ValueError):  # ncu could not read it, and says `n/a`
                number = float(cells["Metric Value"].replace(",", ""))
            launches[cells["ID"], cells["Kernel Name"]][counter] = number
    whole = [(name, n) for (_, name), n in launches.items() if len(n) == len(COUNTERS)]
    return [
        f"{counts.pop('ns') / 1e3:9.1f} µs  "
        f"{', '.join(f'{key} {value:.0f}%' for key, value in counts.items())}  {name[:60]}"
        for name, counts in sorted(whole, key=lambda each: -each[1]["ns"])[:SHOWN]
    ]
