"""A crowd that does not exist: thousands of solutions or devices, as a tree of its own.

python -m tests.support.crowd /tmp/crowd --solutions 10000    # a million rows of one device
cd /tmp/crowd && time python -m common leaderboard
"""

import argparse
import random
import shutil
from datetime import timedelta
from pathlib import Path

import msgspec

from common.board.plots.sweeps import SWEEPS
from common.board.table import OPS
from common.paths import CONTRIBUTORS, ROOT
from common.records.lines import SCHEMA, End, Record, Run, Selection, Summary
from common.solutions import Solution
from tests.support import made_up

CASES = 50
"""Of each op: `POINTS` for its plots where it has any, the rest for its board."""
POINTS = 15
EXTENDED = 5
FAILING = 10
"""One solution of so many fails a case."""
TEXT = (CONTRIBUTORS / "house" / "rope.py").read_text()
FILES = ("common", "contributors/_template", "pyproject.toml", "README.md", "README.ko.md")


def tree(root, solutions, devices=1, cases=CASES, runs=1):
    """Write a repository with that many solutions, each measured on every device in every run."""
    root.mkdir(parents=True)
    for name in FILES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (root / name).parent.mkdir(exist_ok=True)
        copy(ROOT / name, root / name)
    everyone = [_solution(root / "contributors", number) for number in range(solutions)]
    for number in range(devices):
        folder = root / "results" / f"gpu-{number:04}"
        folder.mkdir(parents=True)
        for turn in range(runs):
            _run(folder, f"GPU {number:04}", turn, everyone, cases)
    return root


def _solution(folder, number):
    """A file of its own for each op of each member."""
    op, handle = OPS[number % len(OPS)], f"member{number // len(OPS):05}"
    path = folder / handle / f"{op}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(TEXT.replace("rope", op))
    return Solution(path, op)


def _run(folder, device, turn, everyone, cases):
    """One finished run over everyone: a file of `2 * cases` rows for each solution."""
    draw = random.Random(f"{device} {turn}")
    run = f"{turn:012x}"
    versions = {"torch": "2.13.0", "triton": "3.7.1"}
    begun = Run(schema=SCHEMA, run=run, device="cuda", device_name=device, versions=versions,
                absent={}, selection=Selection(), memory_gib=140)  # fmt: skip
    digests = {op: next((s.digest for s in everyone if s.op == op), "") for op in OPS}
    templates = {op: _templates(op, run, digests[op], cases) for op in OPS}
    name = f"{made_up.FIRST + timedelta(days=7 * turn):%Y%m%dT%H%M%S.%fZ}-{run}.jsonl"
    with (folder / name).open("wb") as file:
        file.write(msgspec.json.encode(begun) + b"\n")
        for each in everyone:
            file.write(_rows(each, templates[each.op], draw))
        file.write(msgspec.json.encode(End(schema=SCHEMA, run=run, seconds=3600.0)) + b"\n")


def _rows(solution, templates, draw):
    """Every row of a solution, each as many times as fast as the template, more or less."""
    speed = draw.lognormvariate(0, 0.5)
    failing = draw.randrange(len(templates)) if draw.random() < 1 / FAILING else -1
    name, lines = solution.name.encode(), []
    for number, (fine, failed, us) in enumerate(templates):
        us = us / speed * draw.uniform(0.9, 1.1)
        times = b"[%.2f,%.3f,%.3f]" % (us, us * 0.995, us * 1.005)
        line = failed if number == failing else fine
        lines.append(line.replace(b"@name", name).replace(b"[0.0,0.0,0.0]", times))
    return b"".join(lines)


def _templates(op, run, digest, cases):
    """The lines of each case and direction, passed and failed, with the solution's time."""
    points = [sweep for sweep in SWEEPS if sweep.op == op][:1]
    plotted = POINTS if points else 0
    found = []
    for case in range(cases):
        params, tier = {"dtype": "bfloat16", "b": case + 1, "h": 32, "d": 128}, "board"
        if case < plotted:
            params, tier = dict(points[0].where) | {points[0].x: 64 << case}, "plot"
        track = "extended" if case >= cases - EXTENDED else "core"
        for direction in made_up.DIRECTIONS:
            found.append(_template(op, run, digest, f"{64 << case % 16}x{case}x32x128-bfloat16",
                                   params, tier, track, direction))  # fmt: skip
    return found


def _template(op, run, digest, case, params, tier, track, direction):
    us = 20.0 * (1 + len(case)) * (2 if direction == "backward" else 1)
    times = {"solution": 0.0, "dense": us / 2.5, "copy": us / 2.2, "eager": us, "backward": us / 2}
    failed = Record(
        schema=SCHEMA, run=run, solution="@name", op=op, case=case, params=params, track=track,
        ranked_by="gpu", direction=direction, verdict="INCORRECT_NUMERICAL", tier=tier,
        reason="output: 3 of 4096 elements err by up to 5.1 times eager's error", error=5.1,
        bytes=1 << 20, flops=1 << 30, sources=digest, harness="8307e46de7eb", clock=7,
    )  # fmt: skip
    fine = msgspec.structs.replace(
        failed, verdict="PASSED", reason="", error=0.59833, peak_memory=50332044,
        gpu={name: Summary(each, round(each * 0.99, 3), round(each * 1.01, 3))
             for name, each in times.items()},
        host={name: Summary(383.325, 357.815, 402.755) for name in ("solution", "eager")},
        sustained={"solution": us, "eager": us, "dense": us / 2.5},
        device_state={"sm_mhz": [1815, 1980], "memory_mhz": [3201, 3201], "celsius": [41, 56],
                      "throttled": ["power cap"], "others": 0},
    )  # fmt: skip
    return (*(msgspec.json.encode(row) + b"\n" for row in (fine, failed)), us)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path)
    for option, default in (("solutions", 10_000), ("devices", 1), ("cases", CASES), ("runs", 1)):
        parser.add_argument(f"--{option}", type=int, default=default)
    tree(**vars(parser.parse_args()))
