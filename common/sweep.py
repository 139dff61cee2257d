"""Solutions x cases on one device: case by case, so that inputs and oracle are made but once."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from common import ops
from common.grade import Problem, Verdict, grade, pose
from common.solutions import Solution
from common.spec import Case, Direction, Op, Tier
from common.worker import DEADLINE, ForkServer, Worker

MOST_AT_ONCE = 8
Graded = tuple[Solution, Case, Problem, dict[Direction, Verdict]]


def tier_cases(
    solutions: Iterable[Solution], tier: Tier, device: str, sample: int | None = None
) -> Iterator[tuple[Op[Any], list[Case]]]:
    """Each op of the solutions with its cases, or so many of them, drawn alike each time."""
    for op in map(ops.load, sorted({solution.op for solution in solutions})):
        cases = list(op.tier(tier, device))
        if sample and sample < len(cases):
            chosen = sorted(random.Random(0).sample(range(len(cases)), sample))
            cases = [cases[index] for index in chosen]
        yield op, cases


class Sweep:
    """The workers of one device, and a secret that the inputs are drawn from."""

    def __init__(self, device: str, quiet: bool = True, deadline: float = DEADLINE) -> None:
        self.device, self._deadline = device, deadline
        self.seed = int.from_bytes(os.urandom(6))
        self._server = ForkServer(device, quiet)
        self._workers: dict[Solution, Worker] = {}
        self._pool = ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_AT_ONCE))

    def __enter__(self) -> Sweep:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        for worker in self._workers.values():
            worker.close()
        self._server.close()

    def worker(self, solution: Solution) -> Worker:
        if solution not in self._workers:
            self._workers[solution] = Worker(self._server, solution, self._deadline)
        return self._workers[solution]

    def grade(
        self,
        op: Op[Any],
        cases: Iterable[Case],
        solutions: Iterable[Solution],
        skip: Callable[[Solution, Case], bool] = lambda solution, case: False,
    ) -> Iterator[Graded]:
        """Every solution of the op on every case, less what is to be skipped."""
        ours = [solution for solution in solutions if solution.op == op.name]
        for index, case in enumerate(cases):
            due = [solution for solution in ours if not skip(solution, case)]
            if not due:
                continue
            problem = pose(op, case, self.seed + 1000 * index, self.device)
            jobs = [self._pool.submit(grade, problem, self.worker(s)) for s in due]
            # all of them first: whoever times what is yielded has the device to himself
            graded = [job.result() for job in jobs]
            for solution, verdicts in zip(due, graded, strict=True):
                yield solution, case, problem, verdicts
