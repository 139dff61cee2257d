"""Grading of solutions on cases on one device, in two phases; solutions share a case's problem.

The first phase grades several solutions and cases at once. The second phase regrades failures that
other processes may have caused, with the same draws and with no other process alive; its verdicts
count. `retries.Cause` lists the causes.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from common.draws import Draws, entropy
from common.errors import Kind, ServerEnded, UserError, kind_of, out_of_memory
from common.grading.device import CONTEXT, IDLE, DeviceMemory, empty_cache, needed
from common.grading.fork_server import ForkServer
from common.grading.grade import grade_case
from common.grading.problem import Problem, make_problem
from common.grading.retries import KINDS, cause_of
from common.grading.supervisor import Supervisor
from common.grading.worker import Worker
from common.paths import PEERS
from common.processes import cores
from common.solutions import Solution
from common.spec import Case, Direction, Op
from common.verdicts import ENDED, ISOLATED_TOO, Failure, Verdict

MOST_AT_ONCE = 16
"""The most cases that are graded at the same time, on any number of cores."""
AHEAD = 4
"""The cases that are graded at once before they are timed, mostly while torch.compile compiles."""
Verdicts = dict[Direction, Verdict]
Grade = Callable[[Problem, Worker, int], Verdicts]


@dataclass(frozen=True)
class Graded:
    """The verdicts of one solution on one case, with its worker and the problem's summary."""

    worker: Worker
    problem: Problem
    verdicts: Verdicts

    @property
    def solution(self) -> Solution:
        """Return the graded solution."""
        return self.worker.solution

    @property
    def case(self) -> Case:
        """Return the case of the verdicts."""
        return self.problem.case

    def reason(self, kinds: Collection[Kind]) -> str:
        """Return the reason of a verdict of one of these kinds; "" if there is none."""
        verdicts = self.verdicts.values()
        return next((each.reason for each in verdicts if each.kind in kinds), "")


@dataclass(frozen=True)
class TooLarge:
    """A case that does not fit on the device, even with one solution at a time."""

    op: Op[Any]
    case: Case
    reason: str


_Recheck = tuple[Case, Solution]
"""A case on which the second phase regrades a solution."""


class _Run(NamedTuple):
    """The arguments that all cases of one `Sweep.grade` call share."""

    op: Op[Any]
    draws: Draws
    repeats: int
    at_once: int
    """The most cases that not all solutions have answered."""


class Sweep(AbstractContextManager["Sweep"]):
    """The workers of one device and the threads that use them."""

    def __init__(
        self,
        device: str,
        quiet: bool = True,
        deadline: float | None = None,
        overlap: bool | None = None,
        server: ForkServer | None = None,
        memory: DeviceMemory | None = None,
        grade: Grade = grade_case,
        at_once: int = MOST_AT_ONCE,
    ) -> None:
        """Start a fork server unless `server` is given; the workers start later.

        Args:
            device: `cpu` or `cuda`.
            quiet: Drop the output of the solutions' processes.
            deadline: Seconds for one reply of a worker.
            overlap: Grade several cases at once, so that nothing may be timed; by default only on
                a CPU.
            server: A fork server of this device, which outlives the sweep.
            memory: The run's budget of GPU memory, by default all free memory.
            grade: Returns a worker's verdicts on a problem, with up to the given number of repeats.
            at_once: The most solutions and cases that are graded at the same time.
        """
        self.device = device
        self._overlap = device == "cpu" if overlap is None else overlap
        self._grade_problem, self._owns_server = grade, server is None
        self._server = server or ForkServer(device, quiet)
        memory = memory or DeviceMemory.of(device)
        self.supervisor = Supervisor(self._server, memory, deadline)
        self._cores = min(cores(), at_once)
        # on a GPU the threads mostly wait for processes that compile
        self._pool = threads(self._cores * (2 if device == "cuda" else 1))

    def __exit__(self, *_: object) -> None:
        """End the workers, and the fork server if this sweep started it."""
        if self._owns_server:
            # first: the workers end with the server, so that no thread waits for a worker
            self._server.close()
        self._pool.shutdown(cancel_futures=True)
        self.supervisor.close()

    def grade(
        self,
        op: Op[Any],
        cases: Iterable[Case],
        solutions: Iterable[Solution],
        skip: Callable[[Solution, Case], bool] = lambda solution, case: False,
        repeats: int = 0,
    ) -> Iterator[Graded | TooLarge]:
        """Grade every solution of the op on every case that is not skipped.

        The results are in the order of the cases, followed by the results of the second phase.

        Each call draws new random numbers. The numbers of a case depend on the list of all cases,
        including skipped cases, but not on the order of grading; equal cases get equal numbers.

        If the contexts of all solutions do not fit in the GPU's memory, groups of solutions run
        through all cases one after the other. Without `overlap` a few cases are graded and then all
        of them yielded, so that the device is idle whenever a result is yielded, and the caller may
        time on it.

        Solutions of other ops are left out. For the repeats of each case see `grade.grade_case`.
        """
        of_op = [solution for solution in solutions if solution.op == op.name]
        cases = list(cases)
        draws = Draws(entropy(), tuple((case.name, case.group) for case in cases))
        # without the far cases, which wait until enough memory is free
        largest = max((needed(op, case) for case in cases if not case.far_bytes), default=0)
        size = max((self.supervisor.memory.budget - IDLE - largest) // CONTEXT, 1)
        if self._overlap:  # two, so that no thread waits for a solution that takes longer
            at_once = max(self._cores // max(min(len(of_op), size), 1), 2)
        else:  # on a CPU there is no compilation to overlap
            at_once = 1 if self.device == "cpu" else min(AHEAD, self._cores)
        run, rechecks = _Run(op, draws, repeats, at_once), list[_Recheck]()
        for start in range(0, len(of_op), size):
            for result in self._first_phase(run, cases, of_op[start : start + size], skip):
                if isinstance(result, Graded):
                    yield result
                else:
                    rechecks.append(result)
        too_large: set[Case] = set()
        for _, solution in rechecks:
            self.supervisor.ends.note(solution, None)
        for case, solution in rechecks:
            if case not in too_large:
                last = self._last_try(run, case, solution)
                if isinstance(last, TooLarge):
                    too_large.add(case)
                yield last

    # --- first phase ------------------------------------------------------------------------------

    def _first_phase(
        self,
        run: _Run,
        cases: Iterable[Case],
        solutions: Sequence[Solution],
        skip: Callable[[Solution, Case], bool],
    ) -> Iterator[Graded | _Recheck]:
        """Yield the results in order, while a few later cases are graded.

        Without `overlap` all of them end before a result is yielded, so that the device is idle.
        """
        until = FIRST_COMPLETED if self._overlap else ALL_COMPLETED
        pending = deque[list[Future[Graded | _Recheck]]]()

        def is_full() -> bool:
            return sum(not (self._overlap and _is_done(jobs)) for jobs in pending) >= run.at_once

        for case in (*cases, None):
            if case and (due := [each for each in solutions if not skip(each, case)]):
                pending.append(self._jobs(run, case, due))
            while pending and (case is None or is_full()):
                wait([job for jobs in pending for job in jobs if not job.done()], None, until)
                while pending and _is_done(pending[0]):
                    yield from [job.result() for job in pending.popleft()]

    def _jobs(
        self, run: _Run, case: Case, solutions: Sequence[Solution]
    ) -> list[Future[Graded | _Recheck]]:
        """Submit each solution's first try; the problem's memory is free once all have tried."""
        problem = self._pool.submit(self._problem, run, case)
        tries = (partial(self._first_try, run, case, problem, each) for each in solutions)
        return [self._pool.submit(each) for each in tries]

    def _first_try(
        self, run: _Run, case: Case, problem: Future[Problem], solution: Solution
    ) -> Graded | _Recheck:
        """Return the verdicts, or a recheck if another process may have caused them."""
        try:
            made, (size, _) = problem.result(), self.supervisor.memory.needs(run.op, case)
            with self.supervisor.lent(solution, size) as worker:
                graded = self._grade(run, made, worker)
            if not graded.reason(KINDS):
                return graded
        except (ServerEnded, RuntimeError) as error:
            if self._server.interrupted or not cause_of(error):
                raise
            if isinstance(error, ServerEnded):
                self.supervisor.ends.note(solution, error)
        return case, solution

    # --- second phase -----------------------------------------------------------------------------

    def _last_try(self, run: _Run, case: Case, solution: Solution) -> Graded | TooLarge:
        """Return the verdicts with no other process alive, `TooLarge` if the case does not fit.

        If memory runs out, eager in place of the solution shows whether it suffices.
        """
        with self.supervisor.lent(solution) as worker:
            graded, lacks = self._alone(run, case, worker)
            if graded and not lacks:
                return graded
            in_its_place, lacks_too = None, ""
            # suppressed: eager's process cannot map the memory, so that it shows nothing
            with closing(Worker(self._server, eager_of(run.op))) as eager, suppress(UserError):
                in_its_place, lacks_too = self._alone(run, case, eager)
            if lacks_too or not in_its_place:
                return TooLarge(run.op, case, lacks)
            reason = f"{lacks} in the harness next to this solution"
            failure = Failure("RUNTIME_ERROR", reason, Kind.OUT_OF_MEMORY)
            return graded or _failed(worker, in_its_place.problem, failure)

    def _alone(self, run: _Run, case: Case, worker: Worker) -> tuple[Graded | None, str]:
        """Return the verdicts with no other worker alive, and a reason if memory ran out.

        There are no verdicts if the harness's memory ran out.
        """
        try:
            with self.supervisor.alone(worker):
                problem = self._problem(run, case)
                empty_cache()  # frees the oracle's memory
                graded = self._grade(run, problem, worker)
        except RuntimeError as error:
            if kind_of(error) is not Kind.OUT_OF_MEMORY:
                raise
            return None, out_of_memory(error)
        return graded, graded.reason([Kind.OUT_OF_MEMORY])

    # --- one case ---------------------------------------------------------------------------------

    def _problem(self, run: _Run, case: Case) -> Problem:
        """Make the problem from the run's draws."""
        size, scarce = self.supervisor.memory.needs(run.op, case)
        self.supervisor.make_room(size)
        return make_problem(run.op, case, run.draws, self.device, scarce)

    def _grade(self, run: _Run, problem: Problem, worker: Worker) -> Graded:
        """Return the verdicts; a solution that is not run again gets those of its last end.

        Raises:
            ServerEnded: The fork server ended, now or in the latest cases.
        """
        if refusal := self.supervisor.ends.refusal(worker.solution):
            return _failed(worker, problem.summary, refusal)
        ends = worker.ends
        try:
            verdicts = self._grade_problem(problem, worker, run.repeats)
        finally:
            if self.device == "cuda" and problem.case.far_bytes:  # the next case needs the memory
                worker.release()
        accompanied = self.supervisor.has_company(worker)
        for direction, verdict in verdicts.items():
            if worker.is_isolated and verdict.kind is Kind.KILLED:
                reason = f"{verdict.reason}, {ISOLATED_TOO}"
                verdicts[direction] = dataclasses.replace(verdict, reason=reason, kind=Kind.NONE)
            elif accompanied and verdict.verdict == "TIMEOUT":
                verdicts[direction] = dataclasses.replace(verdict, kind=Kind.LATE)
        failed = [verdict for verdict in verdicts.values() if not verdict.fine]
        failed.sort(key=lambda verdict: verdict.verdict not in ENDED)
        ended = worker.ends > ends and failed
        self.supervisor.ends.note(worker.solution, failed[0] if ended else None)
        return Graded(worker, problem.summary, verdicts)


def _is_done(jobs: Iterable[Future[Any]]) -> bool:
    return all(job.done() for job in jobs)


def threads(count: int) -> ThreadPoolExecutor:
    """Return a pool of `count` threads, in which torch uses no further threads.

    There are as many concurrent cases as cores, and small tensors are slower on two threads.
    """
    return ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))


def eager_of(op: Op[Any]) -> Solution:
    """Return the eager solution of an op."""
    return Solution(PEERS / "eager" / f"{op.name}.py", op.name)


def _failed(worker: Worker, problem: Problem, failure: Failure) -> Graded:
    """Return a failure without a call as the verdict of every direction."""
    names = worker.solution.name, problem.op.name, problem.case.name
    verdicts = {each: Verdict(*names, each, **failure.fields) for each in problem.case.directions}
    return Graded(worker, problem, verdicts)
