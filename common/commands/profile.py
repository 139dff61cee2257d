"""What binds a solution in each of its board cases: memory, arithmetic or launching.

The clock's own samples say it: a call that keeps the host longer than the GPU is bound by
launching, any other by the slower of its two limits, which were measured in the same run. Beside
that a Chrome trace of each, and what Nsight Compute counts where it is installed.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import ops
from common.board.ranking import limit
from common.grading.sweep import Sweep, tier_cases
from common.grading.worker import Died
from common.measure import machine, rows
from common.measure.limits import Peak, peak_of
from common.measure.timing import trace_case
from common.paths import PROFILES, ROOT
from common.records.runs import Record
from common.solutions import Solution
from common.spec import DIRECTIONS, Case, Direction, Op, Work

BINDS = {"copy": "memory", "dense": "arithmetic"}
DIRECTION = {"forward": "forward", "backward": "with backward"}
COUNTERS = {
    "gpu__time_duration.sum": "ns",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "DRAM",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "SM",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy",
}
"""What is asked of Nsight Compute, and what it is called here."""
SHOWN = 4
"""Kernels of one call, the longest first."""
NCU_SECONDS = 300
NO_NCU = "Nsight Compute (ncu) is not installed: its counters are left out."


@dataclass(frozen=True)
class Finding:
    """One direction of one case; `reached` and `of_peak` are parts of the least time."""

    gpu: float
    host: float
    no_grad: float | None
    limit: float
    limited_by: str
    of_peak: float | None

    @property
    def reached(self) -> float:
        return self.limit / self.gpu

    @property
    def binds(self) -> str:
        return "launch" if self.host > self.gpu else BINDS[self.limited_by]


def finding(row: Record, work: Work, peak: Peak | None, dtype: str) -> Finding:
    """What a timed row says; `work` is all that its samples did."""
    slowest, name = limit(row)
    gpu = row.gpu["solution"].median
    no_grad = row.host.get("no_grad")
    return Finding(
        gpu=gpu,
        host=row.host["solution"].median,
        no_grad=no_grad.median if no_grad else None,
        limit=slowest,
        limited_by=name,
        of_peak=least(work, peak, dtype) / gpu if peak else None,
    )


def least(work: Work, peak: Peak, dtype: str) -> float:
    """Microseconds that the device's peak allows at best; only products run at a dense rate."""
    arithmetic = work.flops / peak.flops_per_second[dtype] if work.products else 0.0
    return 1e6 * max(work.bytes / peak.bytes_per_second, arithmetic)


def profile(chosen: Sequence[Solution], device: str, verbose: bool) -> None:
    """Print a line for each case and direction, and write the traces."""
    if device == "cpu":
        _count(chosen)
        return
    with Sweep(device, quiet=not verbose) as sweep:
        for solution in chosen:
            _profile(sweep, solution)
    if not shutil.which("ncu"):
        print(NO_NCU)


def _count(chosen: Sequence[Solution]) -> None:
    print("Nothing is timed without a GPU: the least that each case must move and compute.")
    for op, _ in tier_cases(chosen, "board", "cpu"):
        print(f"\n{op.name}\n{_columns(HEADER[:5])}")
        for case in op.cases("board"):
            for direction in DIRECTIONS:
                print(_columns(_counts(op, case, direction)))


def _profile(sweep: Sweep, solution: Solution) -> None:
    name = machine.device_name(sweep.device)
    peak = peak_of(name)
    print(f"\n{solution.name} on {name}{_of_datasheet(peak)}\n{LEGEND}\n{_columns(HEADER)}")
    digests = machine.digests_of([solution])
    cases = {case.name: case for case in ops.load(solution.op).board(sweep.device)}
    timed: list[tuple[Case, Direction]] = []
    for measured in rows.measure(sweep, [solution], "profile", digests):
        case = cases[measured[0].row.case]
        for row, direction in zip((each.row for each in measured), DIRECTIONS, strict=True):
            print(_columns(_told(row, case, direction, peak)), flush=True)
            timed += [(case, direction)] * bool(row.gpu)
    # a profiler that was once in a process slows it, so that nothing is timed after this
    for case, direction in timed:
        _trace(sweep, solution, case, direction)
    if timed:
        print(f"traces: {_folder(solution)}, for ui.perfetto.dev")
    if shutil.which("ncu"):
        for case, direction in dict(timed).items():
            print(f"ncu, {case.name} {DIRECTION[direction]}:", *nsight(solution, case, direction),
                  sep="\n    ", flush=True)  # fmt: skip


def _of_datasheet(peak: Peak | None) -> str:
    if peak is None:
        return ""
    return f", {peak.bytes_per_second / 1e12:g} TB/s at its peak ({peak.source})"


# --- lines ----------------------------------------------------------------------------------------

HEADER = (
    "case", "direction", "MB", "GFLOP", "FLOP/byte", "GPU µs", "host µs", "no grad", "limit µs",
    "reached", "of peak", "binds",
)  # fmt: skip
LEGEND = (
    "host µs: one call on an idle GPU, of the small cases the mean of a burst; launch binds where"
    " that is the longer"
)
WIDTHS = (-44, -13, 9, 9, 9, 9, 9, 9, 15, 8, 8, 11)


def _columns(cells: Sequence[str]) -> str:
    padded = (
        cell.ljust(-width) if width < 0 else cell.rjust(width)
        for cell, width in zip(cells, WIDTHS, strict=False)
    )
    return " ".join(padded).rstrip()


def _counts(op: Op[Any], case: Case, direction: Direction) -> tuple[str, ...]:
    work = op.timed_work(case, direction)
    intensity = work.flops / work.bytes if work.bytes else 0.0
    amounts = (f"{work.bytes / 1e6:.4g}", f"{work.flops / 1e9:.3g}", f"{intensity:.3g}")
    return (case.name, DIRECTION[direction], *amounts)


def _told(row: Record, case: Case, direction: Direction, peak: Peak | None) -> tuple[str, ...]:
    op = ops.load(row.op)
    counts = _counts(op, case, direction)
    if not row.gpu:
        return (*counts[:2], f"{row.verdict}: {row.reason}" if row.reason else row.verdict)
    found = finding(row, op.timed_work(case, direction), peak, case.dtype)
    return (
        *counts,
        f"{found.gpu:.1f}",
        f"{found.host:.1f}",
        "" if found.no_grad is None else f"{found.no_grad:.1f}",
        f"{found.limited_by} {found.limit:.1f}",
        f"{found.reached:.0%}",
        "" if found.of_peak is None else f"{found.of_peak:.0%}",
        found.binds,
    )


# --- traces ---------------------------------------------------------------------------------------


def _folder(solution: Solution) -> Path:
    return PROFILES / solution.handle / solution.path.stem


def _trace(sweep: Sweep, solution: Solution, case: Case, direction: Direction) -> None:
    """Written here: the solution's process only says what is in it."""
    op, worker = ops.load(solution.op), sweep.worker(solution)
    try:
        reply = trace_case(op, case, sweep.device, worker, direction)
    except Died as death:
        reply = {"reason": death.reason}
    try:
        json.loads(reply["trace"])
    except (KeyError, TypeError, ValueError):
        reason = reply.get("reason", "what came is no JSON")
        print(f"no trace of {case.name} {DIRECTION[direction]}: {reason}")
        return
    path = _folder(solution) / f"{case.name}-{direction}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(reply["trace"])


# --- Nsight Compute -------------------------------------------------------------------------------


def nsight(solution: Solution, case: Case, direction: str) -> list[str]:
    """What it counts of each kernel of one call, the longest first; or why it counts nothing."""
    command = [
        "ncu", "--csv", "--print-units", "base", "--clock-control", "none",
        "--profile-from-start", "off", "--metrics", ",".join(COUNTERS),
        sys.executable, "-m", "common.sandbox.alone.solo",
        str(solution.path), solution.op, case.name, direction,
    ]  # fmt: skip
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)}
    try:
        ran = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=NCU_SECONDS
        )
    except subprocess.TimeoutExpired:
        return [f"no answer within {NCU_SECONDS} s"]
    kernels = sorted(read_counters(ran.stdout), key=lambda kernel: -kernel[1]["ns"])
    if not kernels:
        said = [line for line in (ran.stdout + ran.stderr).splitlines() if line.strip()]
        errors = [line for line in said if "ERROR" in line] or said[-1:]
        return [errors[0].strip() if errors else "it said nothing"]
    return [_kernel(name, values) for name, values in kernels[:SHOWN]]


def read_counters(output: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Each launch in ncu's CSV, which stands below whatever else was printed."""
    lines = output.splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    launches: dict[str, tuple[str, dict[str, float]]] = {}
    for cells in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        if name := COUNTERS.get(cells.get("Metric Name") or ""):
            kernel = launches.setdefault(cells["ID"], (cells["Kernel Name"], {}))
            kernel[1][name] = _number(cells["Metric Value"])
    yield from (launch for launch in launches.values() if len(launch[1]) == len(COUNTERS))


def _number(text: str) -> float:
    """1,234.5 or, where a counter could not be read, n/a."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return float("nan")


def _kernel(name: str, values: dict[str, float]) -> str:
    shares = ", ".join(f"{key} {value:.0f}%" for key, value in values.items() if key != "ns")
    return f"{values['ns'] / 1e3:9.1f} µs  {shares}  {name[:60]}"
