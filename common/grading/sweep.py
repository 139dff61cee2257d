"""Solutions and cases on one device, case by case: a case's problem is made once for all."""

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
from common.grading.sharing import check_sharing
from common.grading.worker import LIVES, Worker
from common.solutions import Solution
from common.spec import Case, Direction, Op, Tier
from common.verdicts import Verdict

MOST_AT_ONCE = 8
"""Solutions and cases that are graded at the same time, however many cores there are."""
SPANS = 3 + MOST_AT_ONCE
"""Far views of one case that a GPU holds at once: one in the memory that each worker shares, and up
to three while the inputs are drawn and drawn again for the budgets."""
LARGE: tuple[Tier, ...] = ("matrix", "plot")
"""The tiers whose tensors are too large for the interpreter."""
REPEATS = 20
"""Further answers to each of the board's cases on a GPU, whose programs overlap."""


@dataclass(frozen=True)
class Graded:
    """The verdicts of one solution on one case, with the worker and the problem of both."""

    worker: Worker
    problem: Problem
    verdicts: dict[Direction, Verdict]

    @property
    def solution(self) -> Solution:
        """Return the solution that was graded."""
        return self.worker.solution

    @property
    def case(self) -> Case:
        """Return the case that it was graded on."""
        return self.problem.case


@dataclass(frozen=True)
class _PendingCase:
    """A case under way: its problem, and the verdicts to come of each worker."""

    problem: Future[Problem]
    jobs: list[tuple[Worker, Future[dict[Direction, Verdict]]]]

    def wait(self) -> None:
        """Wait until every worker is done with it."""
        wait(job for _, job in self.jobs)


def tier_cases(
    solutions: Iterable[Solution], tier: Tier, device: str, sample: int | None = None
) -> Iterator[tuple[Op[Any], list[Case]]]:
    """Yield each op of the solutions with its cases of the tier.

    Args:
        solutions: The solutions; ops that none of them is for are left out.
        tier: The tier.
        device: `cpu` or `cuda`; without a GPU the board's cases are their twins, and a GPU without
            bfloat16 gets no case of that dtype.
        sample: At most so many cases of each op, the same ones each time.

    Raises:
        UserError: The tier's tensors are too large for the interpreter.
    """
    if tier in LARGE and device == "cpu":
        raise UserError(f"tier {tier} needs a GPU: its tensors are too large for the interpreter")
    for op in map(ops.load, sorted({solution.op for solution in solutions})):
        cases = [
            case for case in op.tier(tier, device) if _fits(case, device) and _has(case, device)
        ]
        if not cases:  # only the ops of the seeds' plots have any in the tier `plot`
            continue
        if sample and sample < len(cases):
            chosen = sorted(random.Random(0).sample(range(len(cases)), sample))
            cases = [cases[index] for index in chosen]
        yield op, cases


def _fits(case: Case, device: str) -> bool:
    """Return whether the memory that the case's far view spans is free, SPANS times over.

    On a CPU only the pages of the view's elements are taken.
    """
    return device == "cpu" or SPANS * case.span <= torch.cuda.mem_get_info()[0]


def _has(case: Case, device: str) -> bool:
    """Return whether the device computes in the case's dtype: GPUs before Ampere lack bfloat16."""
    if device == "cpu" or case.dtype != "bfloat16":
        return True
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def repeats(tier: Tier, device: str) -> int:
    """Return how often a case of the tier is answered again, so that a rare race shows."""
    return REPEATS if tier == "board" and device == "cuda" else 0


class Sweep:
    """The workers of one device, and the threads that grade with them; a context manager."""

    def __init__(
        self,
        device: str,
        quiet: bool = True,
        deadline: float | None = None,
        lives: float = LIVES,
        overlap: bool | None = None,
        server: ForkServer | None = None,
    ) -> None:
        """Start a fork server, unless one is given, and no worker yet.

        Args:
            device: `cpu` or `cuda`.
            quiet: Drop the output of the solutions' processes.
            deadline: Seconds for one reply of a worker.
            lives: Deaths of a worker after which its solution is not run again.
            overlap: Grade several cases at once, so that nothing may be timed. The default is to
                do so without a GPU.
            server: A fork server of this device, which outlives the sweep.

        Raises:
            UserError: The GPU's memory cannot be shared; a server that is given is not asked.
        """
        self.device, self._deadline, self._lives = device, deadline, lives
        self._overlap = device == "cpu" if overlap is None else overlap
        self._owns_server = server is None
        self._server = ForkServer(device, quiet) if server is None else server
        if self._owns_server and device == "cuda":
            self._check_sharing()
        self._workers: dict[tuple[Solution, int], Worker] = {}
        self._cores = min(len(os.sched_getaffinity(0)), MOST_AT_ONCE)
        self._graders = ThreadPoolExecutor(self._cores)
        # threads of their own: graders wait for problems, and could keep them all from being made
        self._makers = ThreadPoolExecutor(self._cores)

    def __enter__(self) -> Sweep:
        """Return the sweep."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers, and the fork server unless it was given."""
        if self._owns_server:
            self._server.close()  # first: its workers die with it, so that no thread waits for one
        for pool in (self._makers, self._graders):
            pool.shutdown(cancel_futures=True)
        for worker in self._workers.values():
            worker.close()

    def _check_sharing(self) -> None:
        """End the fork server if the GPU's memory cannot be shared with its processes."""
        try:
            check_sharing(self._server)
        except UserError:
            self._server.close()
            raise

    def worker(self, solution: Solution, lane: int = 0) -> Worker:
        """Return the solution's worker; cases that are graded at the same time have a lane each."""
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
        """Grade every solution of the op on every case that is not skipped, in the cases' order.

        As many are graded at once as there are cores: all solutions of a case, and where they are
        few, several cases. Without `overlap` nothing is under way when a result is yielded, so that
        the caller may time on an idle device.

        Args:
            op: The op; solutions of other ops are left out.
            cases: The cases.
            solutions: The solutions.
            skip: Whether to leave out a solution on a case.
            repeats: Further answers to each case; see `grade.grade`.
        """
        ours = [solution for solution in solutions if solution.op == op.name]
        cases = list(cases)
        lanes = self._lanes(op, cases, len(ours))
        free, pending = itertools.cycle(range(lanes)), deque[_PendingCase]()
        for case in cases:
            if len(pending) == lanes:  # the oldest case has the lane that is next
                yield from self._finish(pending, repeats)
            if due := [solution for solution in ours if not skip(solution, case)]:
                lane = next(free)
                workers = [self.worker(solution, lane) for solution in due]
                pending.append(self._start(op, case, workers, repeats))
        while pending:
            yield from self._finish(pending, repeats)
        if self.device == "cuda":  # the next op's workers need the memory
            for solution in ours:
                for lane in range(lanes):
                    self.worker(solution, lane).release()

    def _lanes(self, op: Op[Any], cases: Iterable[Case], solutions: int) -> int:
        """Return how many cases are graded at once, as cores and the GPU's memory allow."""
        if not self._overlap:
            return 1
        lanes = self._cores // max(solutions, 1)
        if self.device == "cuda":
            largest = max((op.work(case, "forward").bytes for case in cases), default=0)
            free, _ = torch.cuda.mem_get_info()
            free -= SPANS * max((case.span for case in cases), default=0)
            lanes = min(lanes, free // max(op.room * max(solutions, 1) * largest, 1))
        return max(lanes, 1)

    def _start(
        self, op: Op[Any], case: Case, workers: Iterable[Worker], repeats: int
    ) -> _PendingCase:
        problem = self._makers.submit(make_problem, op, case, secrets.randbits(48), self.device)

        def run(worker: Worker) -> dict[Direction, Verdict]:
            return self._grade(problem.result(), worker, repeats)

        return _PendingCase(problem, [(each, self._graders.submit(run, each)) for each in workers])

    def _grade(self, problem: Problem, worker: Worker, repeats: int) -> dict[Direction, Verdict]:
        """Return the verdicts; free the worker's memory if a far view spans it, for the next."""
        try:
            return grade(problem, worker, repeats)
        finally:
            if self.device == "cuda" and problem.case.span:
                worker.release()

    def _finish(self, pending: deque[_PendingCase], repeats: int) -> Iterator[Graded]:
        """Yield the verdicts of the case that was started first."""
        oldest = pending.popleft()
        oldest.wait()
        if self.device == "cuda":
            self._make_room(worker for worker, _ in oldest.jobs)
        for worker, job in oldest.jobs:
            problem = oldest.problem.result()
            try:
                verdicts = job.result()
            except ServerEnded:  # again, with no other asked: a solution that ends it is found
                for other in pending:
                    other.wait()
                with worker.alone():
                    verdicts = self._grade(problem, worker, repeats)
            yield Graded(worker, problem, verdicts)

    def _make_room(self, workers: Iterable[Worker]) -> None:
        """Return cached GPU memory; when it is scarce, the workers' too."""
        if not self._overlap or _scarce():
            torch.cuda.empty_cache()
        if _scarce():
            for worker in workers:
                worker.release()


def _scarce() -> bool:
    free, total = torch.cuda.mem_get_info()
    return free < total / 4
