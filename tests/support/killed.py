"""A driver whose executors are made up: its `bench` or `grade`, to be killed in the midst.

`bench(folder)` records into `folder/results`, `grade(folder)` writes `folder/verdicts.json`.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

from common import cli, paths
from common.commands import engines
from common.commands import options as shared
from common.engines import benching
from common.engines.engine import CaseResult, Job
from common.measure import machine
from common.records.lines import Selection, Summary
from common.solutions import discover
from tests.support.fake_ray import FakeCluster, FakeExecutor
from tests.support.records import row
from tests.support.waiting import LONGEST

COUNT = 30
"""Cases of each of the two solutions."""
STEP = 0.004
"""Seconds of an answer."""
SAMPLES = {"solution": [2.05, 2.04], "eager": [3.0], "copy": [1.0]}
LAST = "bob/rope", f"c{COUNT - 1}"
"""The last answer, which does not come from a driver that is to be killed before its end."""


held = False
"""Whether LAST does not come."""


def take_time(solution, case):
    """Take the time of an answer."""
    time.sleep(LONGEST if held and (solution, case) == LAST else STEP)


class Timed(FakeExecutor):
    """Answers with rows whose times differ from run to run."""

    def __init__(self, name, digests):
        super().__init__(name, count=COUNT, device="cuda")
        self.digests = digests

    def answer(self, task, solution, case):
        take_time(solution, case)
        sources, harness = self.digests[solution]
        rows = [
            row(
                run="", solution=solution, case=case, direction=direction, sources=sources,
                harness=harness, node="here", device=self.name,
                gpu={name: Summary.of([random.uniform(1, 2)]) for name in SAMPLES},
            )
            for direction in ("forward", "backward")
        ]  # fmt: skip
        samples = ({"gpu": SAMPLES},) * len(rows)
        return CaseResult.of(rows, samples=samples)


class Slow(FakeExecutor):
    """Answers with verdicts, each after a moment."""

    def answer(self, task, solution, case):
        take_time(solution, case)
        return super().answer(task, solution, case)


def solutions(folder: Path):
    """Return two solutions in the folder."""
    for handle in ("ada", "bob"):
        source = folder / "contributors" / handle / "rope.py"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(f'"""{handle}"""\n')
    return discover(folder / "contributors")


def cluster(folder, command):
    """Return two executors that share the job."""
    chosen = solutions(folder)
    machine.harness_digest = lambda: "0" * 12  # the true one takes most of a run's time
    digests = {each.name: pair for each, pair in machine.digests_of(chosen).items()}
    job = Job(command=command, device="cuda", solutions=tuple(chosen), tier="board")
    make = {"bench": lambda n: Timed(n, digests), "grade": lambda n: Slow(n, count=COUNT)}
    return FakeCluster(job, [make[command](name) for name in "ab"])


def bench(folder: Path, to_be_killed: bool = False) -> None:
    """Bench both solutions, or go on with it."""
    global held
    held = to_be_killed
    paths.RESULTS = folder / "results"
    for _ in benching.bench(cluster(folder, "bench"), Selection(), {}):
        pass


def grade(folder: Path, to_be_killed: bool = False) -> None:
    """Grade both solutions, or go on with it."""
    global held
    held = to_be_killed
    engines.chosen = lambda *_: cluster(folder, "grade")
    words = ["grade", "--json", str(folder / "verdicts.json")]
    shared.chosen = lambda options: solutions(folder)
    cli.main(words)
