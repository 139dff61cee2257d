"""Grading of solutions on cases on one device, in two phases; solutions share a case's problem.

The first phase grades several solutions and cases at once, within one budget of memory and cores.
The second phase regrades failures that other processes may have caused: out of memory, a SIGKILL of
unknown origin, the end of the fork server, or a timeout while other workers ran. It regrades them
one by one, with the same draws and with no other process alive, and its verdicts count.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from queue import LifoQueue
from typing import Any, NamedTuple

import torch

from common.draws import Draws, entropy
from common.errors import Kind, ServerEnded, UserError, is_out_of_memory, out_of_memory
from common.grading.fork_server import ForkServer
from common.grading.grade import grade_case
from common.grading.memory import IDLE, DeviceMemory, Footprint, MemoryBudget
from common.grading.problem import Problem, make_problem
from common.grading.sharing import check_sharing
from common.grading.worker import Worker
from common.paths import PEERS
from common.processes import cores
from common.solutions import Solution
from common.spec import Case, Direction, Op
from common.verdicts import ENDED, ISOLATED_TOO, Verdict

CRASH_LIMIT = 2
"""A solution whose process ends in this many successive cases is not run again."""
MOST_AT_ONCE = 16
"""The most cases that are graded at the same time, on any number of cores."""
AHEAD = 4
"""The cases that are graded at once before they are timed, mostly while torch.compile compiles."""
LATE = 100
"""The most pending cases; a case that is done stays pending until all older cases are done."""
Verdicts = dict[Direction, Verdict]
Grade = Callable[[Problem, Worker, int], Verdicts]


class Role(enum.Enum):
    """The purpose of an eager worker, which grades no solution."""

    BASELINE = enum.auto()
    """Eager is timed next to each solution."""
    REFERENCE = enum.auto()
    """Eager runs in place of a solution, to find whether the solution caused a failure."""


@dataclass(frozen=True)
class Graded:
    """The verdicts of one solution on one case, with its worker and the problem's summary."""

    worker: Worker
    problem: Problem
    verdicts: Verdicts
    accompanied: bool = False
    """Whether other workers may have run at the same time."""

    @property
    def solution(self) -> Solution:
        """Return the graded solution."""
        return self.worker.solution

    @property
    def case(self) -> Case:
        """Return the case of the verdicts."""
        return self.problem.case

    @property
    def ran_out(self) -> str:
        """Return the reason if the solution ran out of GPU memory, else ""."""
        return next((verdict.reason for verdict in self.verdicts.values() if verdict.ran_out), "")

    @property
    def timed_out(self) -> bool:
        """Whether a direction timed out."""
        return any(verdict.verdict == "TIMEOUT" for verdict in self.verdicts.values())

    @property
    def doubtful(self) -> bool:
        """Whether other workers may have caused the failure."""
        killed = any(verdict.killed for verdict in self.verdicts.values())
        return killed or bool(self.ran_out) or (self.timed_out and self.accompanied)


@dataclass(frozen=True)
class TooLarge:
    """A case that does not fit on the device, even with one solution at a time."""

    op: Op[Any]
    case: Case
    reason: str


class _Recheck(NamedTuple):
    """A case on which the second phase regrades a solution."""

    case: Case
    worker: Worker
    timed_out: bool
    """Whether the case timed out while other workers ran."""


class _GradeArguments(NamedTuple):
    """The arguments that all cases of one `Sweep.grade` call share."""

    op: Op[Any]
    draws: Draws
    repeats: int


class _Pending(NamedTuple):
    """A case in progress: the job of each solution, and the GPU memory of all jobs in bytes."""

    jobs: list[Future[Graded | _Recheck]]
    needed: int

    @property
    def done(self) -> bool:
        """Whether all jobs are done."""
        return all(job.done() for job in self.jobs)


class Sweep:
    """The workers of one device and the threads that use them; a context manager."""

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
        late: Callable[[Worker], None] | None = None,
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
            at_once: The most cases that are graded at the same time.
            late: Called with a worker that is late; see `Worker`.

        Raises:
            UserError: GPU memory cannot be shared; not tested if `server` is given.
        """
        self.device, self._deadline = device, deadline
        self._overlap = device == "cpu" if overlap is None else overlap
        self._grade_problem, self._late = grade, late
        self._owns_server = server is None
        self._server = ForkServer(device, quiet) if server is None else server
        self.memory_budget = MemoryBudget(memory or DeviceMemory.of(device))
        if self._owns_server and device == "cuda":
            try:
                check_sharing(self._server)
            except UserError:
                self._server.close()
                raise
        self._workers: dict[tuple[Solution, int | Role], Worker] = {}
        self._ends: dict[Solution, list[Graded | None]] = defaultdict(list)
        """The latest successive cases in which each solution's process ended; None for an end that
        something else may have caused."""
        self._cores = min(cores(), at_once)
        # on a GPU the threads mostly wait for processes that compile
        self._graders = threads(self._cores * (2 if device == "cuda" else 1))
        # separate threads, since graders wait for problems and could occupy a whole shared pool
        self._makers = threads(self._cores)

    def __enter__(self) -> Sweep:
        """Return the sweep."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers, and the fork server if this sweep started it."""
        if self._owns_server:
            # first: the workers end with the server, so that no thread waits for a worker
            self._server.close()
        for pool in (self._makers, self._graders):
            pool.shutdown(cancel_futures=True)
        for worker in self._workers.values():
            worker.close()

    def worker(self, solution: Solution, slot: int | Role = 0) -> Worker:
        """Return the solution's worker of a slot; concurrent cases use different slots."""
        if (solution, slot) not in self._workers:
            limit = self.memory_budget.memory.limit if self.device == "cuda" else None
            worker = Worker(self._server, solution, self._deadline, limit, self._late)
            self._workers[solution, slot] = worker
            self.memory_budget.workers.append(worker)
        return self._workers[solution, slot]

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

        The cores and the GPU's memory limit the concurrent work: all solutions of one case and, if
        the solutions are few, several cases. If the processes of all solutions do not fit in the
        memory, groups of solutions run through all cases one after the other. Without `overlap`
        a few cases are graded and then all of them yielded, so that the device is idle whenever a
        result is yielded, and the caller may time on it.

        Args:
            op: The op; solutions of other ops are left out.
            cases: The cases.
            solutions: The solutions.
            skip: Whether to leave out a solution on a case.
            repeats: The number of repeats of each case; see `grade.grade_case`.
        """
        of_op = [solution for solution in solutions if solution.op == op.name]
        cases = list(cases)
        draws = Draws(entropy(), tuple((case.name, case.group) for case in cases))
        run = _GradeArguments(op, draws, repeats)
        # without the far cases, which wait until enough memory is free
        footprints = [Footprint.by(op, case) for case in cases if not case.far_bytes]
        fitting = (
            self.memory_budget.together(footprint, not self._overlap) for footprint in footprints
        )
        group_size, rechecks = min(fitting, default=1), list[_Recheck]()
        for start in range(0, len(of_op), group_size):
            for result in self._first_phase(run, cases, of_op[start : start + group_size], skip):
                if isinstance(result, _Recheck):
                    rechecks.append(result)
                else:
                    yield result
        yield from self._second_phase(run, rechecks)

    # --- first phase ------------------------------------------------------------------------------

    def _first_phase(
        self,
        run: _GradeArguments,
        cases: Iterable[Case],
        solutions: Sequence[Solution],
        skip: Callable[[Solution, Case], bool],
    ) -> Iterator[Graded | _Recheck]:
        slots, most_pending = self._slots(len(solutions))
        pending = deque[_Pending]()
        # last in, first out: the latest worker has a process, and shared memory of similar size
        free = {solution: LifoQueue[Worker]() for solution in solutions}
        for solution, slot in itertools.product(solutions, range(slots)):
            free[solution].put(self.worker(solution, slot))
        for case in cases:
            footprint = Footprint.by(run.op, case)
            needed = MemoryBudget.needed(footprint, len(solutions))
            while self._is_full(pending, most_pending, needed):
                yield from self._results(pending)
            if queues := [free[solution] for solution in solutions if not skip(solution, case)]:
                jobs = self._start_jobs(run, case, queues)
                pending.append(_Pending(jobs, MemoryBudget.needed(footprint, len(queues))))
        while pending:
            yield from self._results(pending)
        if self.device == "cuda":  # the next op's workers need the memory
            for solution, slot in itertools.product(solutions, range(slots)):
                self.worker(solution, slot).release()

    def _slots(self, solutions: int) -> tuple[int, int]:
        """Return the largest numbers of cases that are graded at once and that are in progress.

        The GPU's memory may allow fewer. While all slots are in use, the problem of a further case
        is computed, so that a free worker can start with it at once.
        """
        if not self._overlap:  # on a CPU there is no compilation to overlap
            slots = 1 if self.device == "cpu" else min(AHEAD, self._cores)
            return slots, slots
        slots = max(self._cores // max(solutions, 1), 1)
        return slots, 2 * slots

    def _is_full(self, pending: Sequence[_Pending], most_pending: int, needed: int) -> bool:
        """Return whether no further case may start, for lack of slots or of memory."""
        running = [case.needed for case in pending if not (self._overlap and case.done)]
        if len(running) >= most_pending or len(pending) == LATE:
            return True
        return bool(running) and needed + sum(running) > self.memory_budget.memory.budget - IDLE

    def _start_jobs(
        self, run: _GradeArguments, case: Case, queues: Iterable[LifoQueue[Worker]]
    ) -> list[Future[Graded | _Recheck]]:
        """Submit the making of the problem, and a job for the next free worker of each queue."""
        problem = self._makers.submit(self._problem, run, case)

        def job(queue: LifoQueue[Worker]) -> Graded | _Recheck:
            # waits for the problem before taking a worker; `wait` would miss a cancellation
            problem.exception()
            worker = queue.get()
            try:
                return self._grade_first(run, case, problem, worker)
            finally:
                queue.put(worker)

        return [self._graders.submit(job, queue) for queue in queues]

    def _results(self, pending: deque[_Pending]) -> list[Graded | _Recheck]:
        """Return the results of the oldest case, or none after waiting for a job of any case.

        Without `overlap`, wait for all cases and return their results, so that the device is idle.
        """
        if self._overlap and not pending[0].done and len(pending) < LATE:
            wait(
                [job for case in pending for job in case.jobs if not job.done()],
                return_when=FIRST_COMPLETED,
            )
            return []
        cases = [pending.popleft() for _ in range(1 if self._overlap else len(pending))]
        return [job.result() for case in cases for job in case.jobs]

    def _grade_first(
        self, run: _GradeArguments, case: Case, problem: Future[Problem], worker: Worker
    ) -> Graded | _Recheck:
        """Return a worker's verdicts, or a recheck if another process may have caused them."""
        graded = None
        try:
            problem_made = problem.result()
            with self.memory_budget.taken(worker, Footprint.by(run.op, case)):
                graded = self._grade(problem_made, worker, run.repeats)
        except ServerEnded:
            if self._server.interrupted:
                raise
            self._ends[worker.solution].append(None)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        if graded and not graded.doubtful:
            return graded
        return _Recheck(case, worker, bool(graded and graded.timed_out))

    # --- second phase -----------------------------------------------------------------------------

    def _second_phase(
        self, run: _GradeArguments, rechecks: Sequence[_Recheck]
    ) -> Iterator[Graded | TooLarge]:
        """Yield the isolated result of each recheck; a case that does not fit is yielded once."""
        too_large: set[Case] = set()
        for recheck in rechecks:
            self._ends[recheck.worker.solution].clear()
        for recheck in rechecks:
            if recheck.case not in too_large:
                result = self._recheck(run, recheck)
                if isinstance(result, TooLarge):
                    too_large.add(result.case)
                yield result

    def _recheck(self, run: _GradeArguments, recheck: _Recheck) -> Graded | TooLarge:
        """Return the isolated verdicts, or `TooLarge` if the case does not fit on the device.

        If the harness itself runs out of memory, the problem is made again with `low_memory`. A
        solution that runs out of memory is not graded with `low_memory`, which tests it less.
        """
        case, worker = recheck.case, recheck.worker
        ends = self._ends[worker.solution]
        if recheck.timed_out and not ends:
            ends.append(None)  # so that another timeout is the second end in a row
        result = self._isolated(run, case, worker)
        if isinstance(result, TooLarge):
            result = self._isolated(run, case, worker, low_memory=True)
        if reason := result.reason if isinstance(result, TooLarge) else result.ran_out:
            reference = self.worker(eager_of(run.op), Role.REFERENCE)
            eager = self._isolated(run, case, reference, low_memory=True)
            reference.close()
            if isinstance(eager, TooLarge) or eager.ran_out:
                return TooLarge(run.op, case, reason)
            if isinstance(result, TooLarge):
                return _memory_failure(
                    worker, eager.problem, f"{reason} in the harness next to this solution"
                )
        assert isinstance(result, Graded)
        killed = {
            direction: dataclasses.replace(
                verdict, reason=f"{verdict.reason}, {ISOLATED_TOO}", kind=Kind.NONE
            )
            for direction, verdict in result.verdicts.items()
            if verdict.killed
        }
        confirmed = dataclasses.replace(result, verdicts=result.verdicts | killed)
        if ends and ends[-1] is result:
            ends[-1] = confirmed
        return confirmed

    def _isolated(
        self, run: _GradeArguments, case: Case, worker: Worker, low_memory: bool = False
    ) -> Graded | TooLarge:
        """Return the verdicts with no other worker alive; TooLarge if the harness lacks memory."""
        try:
            with self.memory_budget.isolated(worker):
                problem = self._problem(run, case, low_memory)
                self.memory_budget.make(sys.maxsize, keep=[])  # free the oracle's cached memory
                return self._grade(problem, worker, run.repeats)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return TooLarge(run.op, case, out_of_memory(error))

    # --- one case ---------------------------------------------------------------------------------

    def _problem(self, run: _GradeArguments, case: Case, low_memory: bool = False) -> Problem:
        """Make the problem from the run's draws; the budget may require `low_memory`."""
        footprint = Footprint.by(run.op, case)
        low_memory = low_memory or footprint.low_memory(self.memory_budget.memory.budget)
        self.memory_budget.make_for_problem(footprint)
        return make_problem(run.op, case, run.draws, self.device, low_memory)

    def _grade(self, problem: Problem, worker: Worker, repeats: int) -> Graded:
        """Return the verdicts; a solution that is not run again gets those of one of its ends.

        Raises:
            ServerEnded: The fork server ended, now or in the latest cases.
        """
        ends, crashes = self._ends[worker.solution], worker.crashes
        worker.case = problem.case.name
        if len(latest := [*ends]) >= CRASH_LIMIT:  # copied, since another slot may change it
            end = next((graded for graded in latest if graded and graded.doubtful), latest[-1])
            if end is None:
                raise ServerEnded
            return _not_run(problem, worker, end)
        try:
            verdicts = self._grade_problem(problem, worker, repeats)
        finally:
            if self.device == "cuda" and problem.case.far_bytes:  # the next case needs the memory
                worker.release()
        graded = Graded(worker, problem.summary, verdicts, self.memory_budget.has_company(worker))
        if worker.crashes > crashes and not all(verdict.fine for verdict in verdicts.values()):
            ends.append(graded)
        else:
            ends.clear()
        return graded


def threads(count: int) -> ThreadPoolExecutor:
    """Return a pool of `count` threads, in which torch uses no further threads.

    There are as many concurrent cases as cores, and small tensors are slower on two threads.
    """
    return ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))


def eager_of(op: Op[Any]) -> Solution:
    """Return the eager solution of an op."""
    return Solution(PEERS / "eager" / f"{op.name}.py", op.name)


# --- verdicts without a call ----------------------------------------------------------------------


def _memory_failure(worker: Worker, problem: Problem, reason: str) -> Graded:
    """Return the failure of a case that fits in memory with eager, but not with the solution."""
    names = worker.solution.name, problem.op.name, problem.case.name
    verdicts = {
        direction: Verdict(*names, direction, "RUNTIME_ERROR", reason, kind=Kind.OUT_OF_MEMORY)
        for direction in problem.case.directions
    }
    return Graded(worker, problem, verdicts)


def _not_run(problem: Problem, worker: Worker, ended: Graded) -> Graded:
    """Return the verdicts of a solution that is not run again, copied from one of its ends."""
    failures = [verdict for verdict in ended.verdicts.values() if not verdict.fine]
    end = next((failure for failure in failures if failure.verdict in ENDED), failures[0])
    end = dataclasses.replace(
        end,
        case=problem.case.name,
        reason=f"not run again after {CRASH_LIMIT} such ends: {end.reason}",
    )
    verdicts = {
        direction: dataclasses.replace(end, direction=direction)
        for direction in problem.case.directions
    }
    return Graded(worker, problem.summary, verdicts, ended.accompanied)
