"""Solutions x cases on one device: case by case, so that inputs and oracle are made but once."""

from __future__ import annotations

import itertools
import os
import random
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import torch

from common import ops
from common.errors import UserError
from common.grading.fork_server import ForkServer, ServerEnded
from common.grading.grade import grade
from common.grading.problem import Problem, make_problem
from common.grading.worker import LIVES, Worker
from common.solutions import Solution
from common.spec import Case, Direction, Op, Tier
from common.verdicts import Verdict

MOST_AT_ONCE = 8
LARGE: tuple[Tier, ...] = ("matrix", "plot")
REPEATS = 20
"""Further answers to each of the board's cases on a GPU, whose programs overlap."""
Graded = tuple[Solution, Case, Problem, dict[Direction, Verdict]]


def tier_cases(
    solutions: Iterable[Solution], tier: Tier, device: str, sample: int | None = None
) -> Iterator[tuple[Op[Any], list[Case]]]:
    """Each op of the solutions with its cases, or so many of them, drawn alike each time."""
    if tier in LARGE and device == "cpu":
        raise UserError(f"tier {tier} needs a GPU: its tensors are too large for the interpreter")
    for op in map(ops.load, sorted({solution.op for solution in solutions})):
        cases = list(op.tier(tier, device))
        if not cases:  # only the ops of the seeds' plots have any in that tier
            continue
        if sample and sample < len(cases):
            chosen = sorted(random.Random(0).sample(range(len(cases)), sample))
            cases = [cases[index] for index in chosen]
        yield op, cases


def repeats(tier: Tier, device: str) -> int:
    """How often a case of the tier is answered again, to see a race that seldom shows."""
    return REPEATS if tier == "board" and device == "cuda" else 0


class Sweep:
    """The workers of one device, and the oracle beside them."""

    def __init__(
        self,
        device: str,
        quiet: bool = True,
        deadline: float | None = None,
        lives: float = LIVES,
        overlap: bool | None = None,
        server: ForkServer | None = None,
    ) -> None:
        """With `overlap`, the default without a GPU, several cases may be under way at once, so
        that nothing may be timed."""
        self.device, self._deadline, self._lives = device, deadline, lives
        self._overlap = device == "cpu" if overlap is None else overlap
        self._server = server or ForkServer(device, quiet)
        self._shared = server is not None
        self._workers: dict[tuple[Solution, int], Worker] = {}
        self._cores = min(len(os.sched_getaffinity(0)), MOST_AT_ONCE)
        self._pool = ThreadPoolExecutor(self._cores)
        self._posing = ThreadPoolExecutor(self._cores)  # else who waits for a problem keeps it away

    def __enter__(self) -> Sweep:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._shared:
            self._server.close()  # its workers die with it, so that nobody waits for one of them
        for pool in (self._posing, self._pool):
            pool.shutdown(cancel_futures=True)
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
        repeats: int = 0,
    ) -> Iterator[Graded]:
        """Every solution of the op on every case, less what is to be skipped, each answered so many
        times more than grading takes.

        As many at once as there are cores: all solutions of a case, and where they are few, several
        cases; not so on a GPU unless `overlap` was asked for. Then whoever times what is yielded
        has the device to himself.
        """
        ours = [solution for solution in solutions if solution.op == op.name]
        cases = list(cases)
        lanes = self._lanes(op, cases, len(ours))
        free, flying = itertools.cycle(range(lanes)), deque[_Flight]()
        for case in cases:
            if len(flying) == lanes:  # the oldest has the lane that is next
                yield from self._land(flying, repeats)
            if due := [solution for solution in ours if not skip(solution, case)]:
                flying.append(self._start(op, case, due, next(free), repeats))
        while flying:
            yield from self._land(flying, repeats)
        if self.device == "cuda":  # for the next op's
            for solution in ours:
                for lane in range(lanes):
                    self.worker(solution, lane).release()

    def _lanes(self, op: Op[Any], cases: Iterable[Case], solutions: int) -> int:
        """How many cases at once."""
        if not self._overlap:
            return 1
        lanes = self._cores // max(solutions, 1)
        if self.device == "cuda":
            largest = max((op.work(case, "forward").bytes for case in cases), default=0)
            free, _ = torch.cuda.mem_get_info()
            lanes = min(lanes, free // max(op.room * max(solutions, 1) * largest, 1))
        return max(lanes, 1)

    def _start(
        self, op: Op[Any], case: Case, due: Iterable[Solution], lane: int, repeats: int
    ) -> _Flight:
        workers = {solution: self.worker(solution, lane) for solution in due}
        posed = self._posing.submit(make_problem, op, case, secrets.randbits(48), self.device)

        def run(worker: Worker) -> dict[Direction, Verdict]:
            return grade(posed.result(), worker, repeats)

        return _Flight(case, posed, [(*w, self._pool.submit(run, w[1])) for w in workers.items()])

    def _make_room(self, workers: Iterable[Worker]) -> None:
        """What a case took here the workers may need, and what these keep, the others."""
        if not self._overlap or _scarce():
            torch.cuda.empty_cache()
        if _scarce():
            for worker in workers:
                worker.release()

    def _land(self, flying: deque[_Flight], repeats: int) -> Iterator[Graded]:
        """The verdicts of the case that was started first."""
        flight = flying.popleft()
        wait(job for *_, job in flight.jobs)
        if self.device == "cuda":
            self._make_room(worker for _, worker, _ in flight.jobs)
        for solution, worker, job in flight.jobs:
            problem = flight.posed.result()
            try:
                yield solution, flight.case, problem, job.result()
            except ServerEnded:
                wait(job for other in flying for *_, job in other.jobs)
                yield solution, flight.case, problem, self._alone(problem, worker, repeats)

    def _alone(self, problem: Problem, worker: Worker, repeats: int) -> dict[Direction, Verdict]:
        """Again, with nobody else asked, so that whoever ends the fork server is known."""
        with worker.alone():
            return grade(problem, worker, repeats)


def _scarce() -> bool:
    free, total = torch.cuda.mem_get_info()
    return free < total / 4


@dataclass(frozen=True)
class _Flight:
    """A case under way: its problem, and the job of each solution."""

    case: Case
    posed: Future[Problem]
    jobs: list[tuple[Solution, Worker, Future[dict[Direction, Verdict]]]]
