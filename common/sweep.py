"""Solutions x cases on one device: case by case, so that inputs and oracle are made but once."""

from __future__ import annotations

import itertools
import os
import random
import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch

from common import ops
from common.grade import Verdict, grade
from common.problem import Problem, pose
from common.solutions import Fault, Solution
from common.spec import Case, Direction, Op, Tier
from common.worker import LIVES, ForkServer, ServerEnded, Worker

MOST_AT_ONCE = 8
LARGE: tuple[Tier, ...] = ("matrix", "plot")
Graded = tuple[Solution, Case, Problem, dict[Direction, Verdict]]


def tier_cases(
    solutions: Iterable[Solution], tier: Tier, device: str, sample: int | None = None
) -> Iterator[tuple[Op[Any], list[Case]]]:
    """Each op of the solutions with its cases, or so many of them, drawn alike each time."""
    if tier in LARGE and device == "cpu":
        raise Fault(f"tier {tier} needs a GPU: its tensors are too large for the interpreter")
    for op in map(ops.load, sorted({solution.op for solution in solutions})):
        cases = list(op.tier(tier, device))
        if not cases:  # only the ops of the seeds' plots have any in that tier
            continue
        if sample and sample < len(cases):
            chosen = sorted(random.Random(0).sample(range(len(cases)), sample))
            cases = [cases[index] for index in chosen]
        yield op, cases


class Sweep:
    """The workers of one device, and the oracle beside them."""

    def __init__(
        self,
        device: str,
        quiet: bool = True,
        deadline: float | None = None,
        lives: float = LIVES,
    ) -> None:
        self.device, self._deadline, self._lives = device, deadline, lives
        self._server = ForkServer(device, quiet)
        self._workers: dict[tuple[Solution, int], Worker] = {}
        self._cores = min(len(os.sched_getaffinity(0)), MOST_AT_ONCE)
        self._pool = ThreadPoolExecutor(self._cores)

    def __enter__(self) -> Sweep:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()  # its workers die with it, so that nobody waits for one of them
        self._pool.shutdown(cancel_futures=True)
        for worker in self._workers.values():
            worker.close()

    def worker(self, solution: Solution, lane: int = 0) -> Worker:
        """The solution's process, or a further one for another case at the same time."""
        if (solution, lane) not in self._workers:
            self._workers[solution, lane] = Worker(
                self._server, solution, self._deadline, self._lives
            )
        return self._workers[solution, lane]

    def grade(
        self,
        op: Op[Any],
        cases: Iterable[Case],
        solutions: Iterable[Solution],
        skip: Callable[[Solution, Case], bool] = lambda solution, case: False,
    ) -> Iterator[Graded]:
        """Every solution of the op on every case, less what is to be skipped.

        As many at once as there are cores: all solutions of a case, and where they are few on a
        CPU, several cases. Whoever times what is yielded has the device to himself.
        """
        ours = [solution for solution in solutions if solution.op == op.name]
        lanes = max(self._cores // max(len(ours), 1), 1) if self.device == "cpu" else 1
        remaining = iter(cases)
        while several := list(itertools.islice(remaining, lanes)):
            if self.device == "cuda":  # what the last case took, the workers may need
                torch.cuda.empty_cache()
            jobs = []
            for lane, case in enumerate(several):
                due = [solution for solution in ours if not skip(solution, case)]
                if not due:
                    continue
                problem = pose(op, case, secrets.randbits(48), self.device)
                for solution in due:
                    worker = self.worker(solution, lane)
                    job = self._pool.submit(grade, problem, worker)
                    jobs.append((solution, case, problem, job, worker))
            wait(job for *_, job, _ in jobs)
            for solution, case, problem, job, worker in jobs:
                try:
                    yield solution, case, problem, job.result()
                except ServerEnded:
                    yield solution, case, problem, self._alone(problem, worker)

    def _alone(self, problem: Problem, worker: Worker) -> dict[Direction, Verdict]:
        """Again, with nobody else asked, so that whoever ends the fork server is known."""
        with worker.alone():
            return grade(problem, worker)
