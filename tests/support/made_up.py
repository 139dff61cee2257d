"""A group that does not exist: 26 solutions and a run on each of 3 devices."""

import random

from common.board.devices import ranked
from common.board.page.site import Site
from common.board.ranking import About
from common.paths import CONTRIBUTORS
from common.records.lines import SCHEMA, Estimate, Record, Run
from common.records.runs import Results
from common.solutions import Solution

OPS = "rope", "rotate_half", "masked_linear", "masked_ffn"
HANDLES = [f"member{number:02}" for number in range(13)]
DEVICES = ("GPU A", "GPU B", "GPU C")
CASES = {"core": 9, "extended": 2}
DIRECTIONS = ("forward", "backward")
FILES = "rope.py", "trigonometry.py", "operators.py", "partition.py"
HOUSE = CONTRIBUTORS / "house"
SOURCES = [HOUSE / "README.md", *(HOUSE / "fast" / name for name in FILES)]
"""The house's files, of which each member's are copies."""


def solutions(folder):
    """Two solutions of each member, in folders with helpers and a README; all are 26."""
    found = []
    for number, handle in enumerate(HANDLES):
        (folder / handle).mkdir(parents=True)
        for source in SOURCES:
            name = source.name.replace("rope", OPS[number % 2])
            (folder / handle / name).write_text(source.read_text())
        text = (HOUSE / "fast" / "rope_kernel.py").read_text()
        second = OPS[2 + number % 2]
        (folder / handle / f"{second}.py").write_text(text.replace("cos", "tan"))
        found += [Solution(folder / handle / f"{op}.py", op) for op in (OPS[number % 2], second)]
    return found


def summary(us, draw):
    spread = us * draw.uniform(0.002, 0.02)
    return Estimate(round(us, 2), round(us - spread, 3), round(us + spread, 3))


def row(solution, run, case, track, direction, digest, draw):
    """A timed row; every 40th fails."""
    base = 20.0 * (1 + len(case)) * (2 if direction == "backward" else 1)
    passed = draw.random() > 1 / 40
    times = {"solution": base * draw.uniform(0.5, 3), "eager": base * 4, "copy": base / 2.2}
    return Record(
        schema=SCHEMA, run=run, solution=solution.name, op=solution.op, case=case,
        params={"dtype": "float32"}, track=track, ranked_by="gpu", direction=direction,
        verdict="PASSED" if passed else "INCORRECT_NUMERICAL",
        reason="" if passed else "output: 3 of 4096 elements err by up to 5.1 times eager's error",
        error=draw.uniform(0.4, 1.2) if passed else 5.1, bytes=1 << 20, flops=1 << 20,
        sources=digest, harness="h", clock=7,
        gpu={name: summary(us, draw) for name, us in times.items()} if passed else {},
    )  # fmt: skip


def results(folder, device, everyone, draw):
    """The records of one device."""
    results = Results(folder / device.lower().replace(" ", "-"))
    digests = {each.name: each.digest for each in everyone}
    versions = {"torch": "2.13.0", "triton": "3.7.1"}
    begun = Run(schema=SCHEMA, run="r1", device="cuda", device_name=device, versions=versions,
                absent={})  # fmt: skip
    results.runs.append(begun)
    results.finished.add(begun.run)
    results.rows.extend(
        row(each, begun.run, f"sbhd-{64 << case}x2x32x128-bfloat16", track, way, digests[each.name],
            draw)
        for each in everyone
        for track, cases in CASES.items()
        for case in range(0 if track == "core" else 9, cases if track == "core" else 11)
        for way in DIRECTIONS
    )  # fmt: skip
    return results


def site_of(boards, solutions):
    """The site of these records of these solutions."""
    about = {each.name: About(each.note, each.digest) for each in solutions}
    return Site([ranked(board, about) for board in boards], solutions)


def site(folder):
    """The whole group's site."""
    draw = random.Random(0)
    everyone = solutions(folder / "contributors")
    boards = [results(folder / "results", device, everyone, draw) for device in DEVICES]
    return site_of(boards, everyone)
