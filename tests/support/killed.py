"""A driver whose executors are made up: its `bench`, to be killed in the midst."""

from __future__ import annotations

import random
import time
from pathlib import Path

from common import paths
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


class Timed(FakeExecutor):
    """Answers with rows whose times differ from run to run, and with `held` all but the last."""

    def __init__(self, name, digests, held):
        super().__init__(name, count=COUNT, device="cuda")
        self.digests, self.held = digests, held

    def answer(self, task, solution, case):
        last = (solution, case) == ("bob/rope", f"c{COUNT - 1}")
        time.sleep(LONGEST if self.held and last else STEP)
        sources, harness = self.digests[solution]
        rows = [
            row(
                run="", solution=solution, case=case, direction=direction, sources=sources,
                harness=harness, node="here", device=self.name,
                gpu={name: Summary.of([random.uniform(1, 2)]) for name in SAMPLES},
            )
            for direction in ("forward", "backward")
        ]  # fmt: skip
        return CaseResult.of(rows, samples=({"gpu": SAMPLES},) * len(rows))


def bench(folder: Path, to_be_killed: bool = False) -> None:
    """Bench two solutions into `folder/results`, or go on with it."""
    paths.RESULTS = folder / "results"
    for handle in ("ada", "bob"):
        source = folder / "contributors" / handle / "rope.py"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(f'"""{handle}"""\n')
    chosen = tuple(discover(folder / "contributors"))
    machine.harness_digest = lambda: "0" * 12  # the true one takes most of a run's time
    digests = {each.name: pair for each, pair in machine.digests_of(chosen).items()}
    job = Job(command="bench", device="cuda", solutions=chosen, tier="board")
    executors = [Timed(name, digests, to_be_killed) for name in "ab"]
    for _ in benching.bench(FakeCluster(job, executors), Selection(), {}):
        pass
