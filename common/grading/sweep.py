"""Solutions and cases on one device, in two phases; a case's problem is made once for all.

First, all of them, several at once, under one budget of memory and cores. Then, one by one and with
nothing else alive, what something else may have caused: want of memory, a SIGKILL of unknown
origin, the end of the fork server, no answer in time where others were asked too. All is drawn as
the first time, and what comes then counts.
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
"""Cases in a row in which a solution's process ends, after which it is not run again."""
MOST_AT_ONCE = 16
"""Cases that are graded at the same time, however many cores there are."""
AHEAD = 4
"""Cases that are graded before they are timed: mostly torch.compile's compilation is waited for."""
LATE = 100
"""Cases under way and cases that are done, but wait for an older one, whose results come first."""
Verdicts = dict[Direction, Verdict]
Grade = Callable[[Problem, Worker, int], Verdicts]


class Role(enum.Enum):
    """The purpose of a worker of eager, in which no solution is graded."""

    BASELINE = enum.auto()
    """It is timed beside each solution."""
    REFERENCE = enum.auto()
    """It is asked in a solution's place, to find whose fault a failure is."""


@dataclass(frozen=True)
class Graded:
    """The verdicts of one solution on one case, with the worker and the problem's outline."""

    worker: Worker
    problem: Problem
    verdicts: Verdicts
    accompanied: bool = False
    """Whether others may have been asked meanwhile."""

    @property
    def solution(self) -> Solution:
        """Return the solution that was graded."""
        return self.worker.solution

    @property
    def case(self) -> Case:
        """Return the case that it was graded on."""
        return self.problem.case

    @property
    def ran_out(self) -> str:
        """Return the reason if the solution lacked the GPU's memory, else nothing."""
        return next((verdict.reason for verdict in self.verdicts.values() if verdict.ran_out), "")

    @property
    def timed_out(self) -> bool:
        """Whether no answer came in time."""
        return any(verdict.verdict == "TIMEOUT" for verdict in self.verdicts.values())

    @property
    def doubtful(self) -> bool:
        """Whether others may have caused the failure."""
        killed = any(verdict.killed for verdict in self.verdicts.values())
        return killed or bool(self.ran_out) or (self.timed_out and self.accompanied)


@dataclass(frozen=True)
class TooLarge:
    """A case that does not fit the device, not even with one solution at a time."""

    op: Op[Any]
    case: Case
    reason: str


class _Recheck(NamedTuple):
    """A solution's case that is to be asked again, alone."""

    case: Case
    worker: Worker
    timed_out: bool
    """Whether no answer came in time beside others."""


class _GradeArguments(NamedTuple):
    """The arguments that all cases of one call of `Sweep.grade` share."""

    op: Op[Any]
    draws: Draws
    repeats: int


class _Pending(NamedTuple):
    """A case under way: the job of each solution, and the bytes of the GPU for all of them."""

    jobs: list[Future[Graded | _Recheck]]
    needed: int

    @property
    def done(self) -> bool:
        """Whether every solution is done with it."""
        return all(job.done() for job in self.jobs)


class Sweep:
    """The workers of one device, and the threads that grade with them; a context manager."""

    def __init__(
        self,
        device: str,
        quiet: bool = True,
        deadline: float | None = None,
        overlap: bool | None = None,
        server: ForkServer | None = None,
        memory: DeviceMemory | None = None,
        grade: Grade = grade_case,
    ) -> None:
        """Start a fork server, unless one is given, and no worker yet.

        Args:
            device: `cpu` or `cuda`.
            quiet: Drop the output of the solutions' processes.
            deadline: Seconds for one reply of a worker.
            overlap: Grade several cases at once, so that nothing may be timed. The default is to
                do so without a GPU.
            server: A fork server of this device, which outlives the sweep.
            memory: What the run may take of the GPU's memory, by default all that is free.
            grade: Returns a worker's verdicts on a problem, after so many further answers.

        Raises:
            UserError: The GPU's memory cannot be shared; a server that is given is not asked.
        """
        self.device, self._deadline = device, deadline
        self._overlap = device == "cpu" if overlap is None else overlap
        self._verdicts = grade
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
        """The latest cases in a row in which a solution's process ended; None where it is not
        known for certain who ended it."""
        self._cores = min(cores(), MOST_AT_ONCE)
        # on a GPU they mostly wait for processes that compile
        self._graders = threads(self._cores * (2 if device == "cuda" else 1))
        # threads of their own: graders wait for problems, and could keep them all from being made
        self._makers = threads(self._cores)

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

    def worker(self, solution: Solution, slot: int | Role = 0) -> Worker:
        """Return the solution's worker; cases that are graded at the same time have a slot each."""
        if (solution, slot) not in self._workers:
            limit = self.memory_budget.memory.limit if self.device == "cuda" else None
            worker = Worker(self._server, solution, self._deadline, limit)
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

        They come in the cases' order, but for those of the second phase, which come at the end.

        All is drawn anew at each call. What is drawn for a case depends on all the cases, skipped
        ones too, but not on the order in which they are graded; a case that is given twice gets
        the same twice.

        As many are graded at once as there are cores and as the GPU's memory holds: all solutions
        of a case, and where they are few, several cases. Where it does not hold the processes of
        all, one group of solutions goes through the cases after the other. Without `overlap`
        nothing is under way when a result is yielded, so that the caller may time on an idle
        device: a few cases are graded, then all of them are yielded.

        Args:
            op: The op; solutions of other ops are left out.
            cases: The cases.
            solutions: The solutions.
            skip: Whether to leave out a solution on a case.
            repeats: Further answers to each case; see `grade.grade_case`.
        """
        ours = [solution for solution in solutions if solution.op == op.name]
        cases = list(cases)
        drawn = Draws(entropy(), tuple((case.name, case.kind) for case in cases))
        run = _GradeArguments(op, drawn, repeats)
        near = [Footprint.by(op, case) for case in cases if not case.span]  # a far one waits
        fitting = (self.memory_budget.together(footprint, not self._overlap) for footprint in near)
        together, later = min(fitting, default=1), list[_Recheck]()
        for start in range(0, len(ours), together):
            for found in self._first_phase(run, cases, ours[start : start + together], skip):
                if isinstance(found, _Recheck):
                    later.append(found)
                else:
                    yield found
        yield from self._second_phase(run, later)

    # --- all at once ------------------------------------------------------------------------------

    def _first_phase(
        self,
        run: _GradeArguments,
        cases: Iterable[Case],
        ours: Sequence[Solution],
        skip: Callable[[Solution, Case], bool],
    ) -> Iterator[Graded | _Recheck]:
        slots, ahead = self._slots(len(ours))
        # the last one first: its process runs, with shared memory of about the size
        free, pending = {each: LifoQueue[Worker]() for each in ours}, deque[_Pending]()
        for solution, slot in itertools.product(ours, range(slots)):
            free[solution].put(self.worker(solution, slot))
        for case in cases:
            footprint = Footprint.by(run.op, case)
            while self._is_full(pending, ahead, MemoryBudget.needed(footprint, len(ours))):
                yield from self._results(pending)
            if due := [free[solution] for solution in ours if not skip(solution, case)]:
                jobs = self._started(run, case, due)
                pending.append(_Pending(jobs, MemoryBudget.needed(footprint, len(due))))
        while pending:
            yield from self._results(pending)
        if self.device == "cuda":  # the next op's workers need the memory
            for solution, slot in itertools.product(ours, range(slots)):
                self.worker(solution, slot).release()

    def _slots(self, solutions: int) -> tuple[int, int]:
        """Return how many cases are graded at once, and how many are under way, at most.

        Fewer where the GPU's memory does not hold so many. A case under way beyond the slots has
        its problem made, and a solution's worker that is done with one begins with the next.
        """
        if not self._overlap:  # without a GPU nothing is compiled
            slots = 1 if self.device == "cpu" else min(AHEAD, self._cores)
            return slots, slots
        slots = max(self._cores // max(solutions, 1), 1)
        return slots, 2 * slots

    def _is_full(self, pending: Sequence[_Pending], ahead: int, needed: int) -> bool:
        """Return whether no further case may start: there are enough, or it needs more memory."""
        running = [each.needed for each in pending if not (self._overlap and each.done)]
        if len(running) >= ahead or len(pending) == LATE:
            return True
        return bool(running) and needed + sum(running) > self.memory_budget.memory.budget - IDLE

    def _started(
        self, run: _GradeArguments, case: Case, due: Iterable[LifoQueue[Worker]]
    ) -> list[Future[Graded | _Recheck]]:
        """Have the problem made, and each solution's next free worker asked."""
        problem = self._makers.submit(self._problem, run, case)

        def ask(free: LifoQueue[Worker]) -> Graded | _Recheck:
            problem.exception()  # waits, before a worker is taken; `wait` would miss a cancellation
            worker = free.get()
            try:
                return self._asked(run, case, problem, worker)
            finally:
                free.put(worker)

        return [self._graders.submit(ask, queue) for queue in due]

    def _results(self, pending: deque[_Pending]) -> list[Graded | _Recheck]:
        """Return the results of the oldest case, or wait until another one makes a slot free.

        Where they may be timed, return those of all: nothing is under way then.
        """
        if self._overlap and not pending[0].done and len(pending) < LATE:
            wait(
                [job for each in pending for job in each.jobs if not job.done()],
                return_when=FIRST_COMPLETED,
            )
            return []
        several = [pending.popleft() for _ in range(1 if self._overlap else len(pending))]
        return [job.result() for each in several for job in each.jobs]

    def _asked(
        self, run: _GradeArguments, case: Case, problem: Future[Problem], worker: Worker
    ) -> Graded | _Recheck:
        """Return a worker's verdicts on a case, unless something else may be behind them."""
        found = None
        try:
            made = problem.result()
            with self.memory_budget.taken(worker, Footprint.by(run.op, case)):
                found = self._grade(made, worker, run.repeats)
        except ServerEnded:
            if self._server.interrupted:
                raise
            self._ends[worker.solution].append(None)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        if found and not found.doubtful:
            return found
        return _Recheck(case, worker, bool(found and found.timed_out))

    # --- one by one -------------------------------------------------------------------------------

    def _second_phase(
        self, run: _GradeArguments, later: Iterable[_Recheck]
    ) -> Iterator[Graded | TooLarge]:
        """Yield what each case comes to with nothing else alive, once where it does not fit."""
        too_large: set[Case] = set()
        for recheck in later:
            self._ends[recheck.worker.solution].clear()
        for recheck in later:
            if recheck.case not in too_large:
                found = self._again(run, recheck)
                if isinstance(found, TooLarge):
                    too_large.add(found.case)
                yield found

    def _again(self, run: _GradeArguments, recheck: _Recheck) -> Graded | TooLarge:
        """Return the verdicts, or that the case does not fit the device.

        Where the harness itself runs out of memory, the problem is made again with low memory. A
        solution that runs out does not get that: it asks less of a solution.
        """
        case, worker = recheck.case, recheck.worker
        ends = self._ends[worker.solution]
        if recheck.timed_out and not ends:
            ends.append(None)  # the same again is the second in a row
        found = self._isolated(run, case, worker)
        if isinstance(found, TooLarge):
            found = self._isolated(run, case, worker, low_memory=True)
        if reason := found.reason if isinstance(found, TooLarge) else found.ran_out:
            reference = self.worker(eager_of(run.op), Role.REFERENCE)
            eager = self._isolated(run, case, reference, low_memory=True)
            reference.close()
            if isinstance(eager, TooLarge) or eager.ran_out:
                return TooLarge(run.op, case, reason)
            if isinstance(found, TooLarge):
                return _failed(worker, eager.problem, f"{reason} beside it")
        assert isinstance(found, Graded)
        killed = {
            direction: dataclasses.replace(
                each, reason=f"{each.reason}, {ISOLATED_TOO}", kind=Kind.NONE
            )
            for direction, each in found.verdicts.items()
            if each.killed
        }
        confirmed = dataclasses.replace(found, verdicts=found.verdicts | killed)
        if ends and ends[-1] is found:
            ends[-1] = confirmed
        return confirmed

    def _isolated(
        self, run: _GradeArguments, case: Case, worker: Worker, low_memory: bool = False
    ) -> Graded | TooLarge:
        """Return the verdicts with nothing else alive, or that the harness runs out of memory."""
        try:
            with self.memory_budget.isolated(worker):
                problem = self._problem(run, case, low_memory)
                self.memory_budget.make(
                    sys.maxsize, keep=[]
                )  # what the oracle has left in the cache
                return self._grade(problem, worker, run.repeats)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return TooLarge(run.op, case, out_of_memory(error))

    # --- one case ---------------------------------------------------------------------------------

    def _problem(self, run: _GradeArguments, case: Case, low_memory: bool = False) -> Problem:
        """Make the problem, with low memory or as the budget allows; the same each time."""
        footprint = Footprint.by(run.op, case)
        low_memory = low_memory or footprint.low_memory(self.memory_budget.memory.budget)
        self.memory_budget.make_for_problem(footprint)
        return make_problem(run.op, case, run.draws, self.device, low_memory)

    def _grade(self, problem: Problem, worker: Worker, repeats: int) -> Graded:
        """Return the verdicts; of a solution that is not run any more, those of one of its ends.

        Raises:
            ServerEnded: The fork server ended, or has done so in the latest cases.
        """
        ends, crashes = self._ends[worker.solution], worker.crashes
        if len(latest := [*ends]) >= CRASH_LIMIT:  # another slot may change them
            end = next((each for each in latest if each and each.doubtful), latest[-1])
            if end is None:
                raise ServerEnded
            return _not_run(problem, worker, end)
        try:
            verdicts = self._verdicts(problem, worker, repeats)
        finally:
            if self.device == "cuda" and problem.case.span:  # the next one needs the memory
                worker.release()
        graded = Graded(worker, problem.summary, verdicts, self.memory_budget.has_company(worker))
        if worker.crashes > crashes and not all(verdict.fine for verdict in verdicts.values()):
            ends.append(graded)
        else:
            ends.clear()
        return graded


def threads(count: int) -> ThreadPoolExecutor:
    """Return a pool of so many threads, in each of which torch uses that thread alone.

    As many cases are at work as there are cores, and small tensors take longer on two threads.
    """
    return ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))


def eager_of(op: Op[Any]) -> Solution:
    """Return eager's own solution of an op."""
    return Solution(PEERS / "eager" / f"{op.name}.py", op.name)


# --- verdicts that no answer decides --------------------------------------------------------------


def _failed(worker: Worker, problem: Problem, reason: str) -> Graded:
    """Return the failure of a case for which there is memory, but not beside the solution."""
    names = worker.solution.name, problem.op.name, problem.case.name
    verdicts = {
        direction: Verdict(*names, direction, "RUNTIME_ERROR", reason, kind=Kind.OUT_OF_MEMORY)
        for direction in problem.case.directions
    }
    return Graded(worker, problem, verdicts)


def _not_run(problem: Problem, worker: Worker, ended: Graded) -> Graded:
    """Return the verdicts of a solution that is not run any more, by one of its latest ends."""
    several = [verdict for verdict in ended.verdicts.values() if not verdict.fine]
    end = next((each for each in several if each.verdict in ENDED), several[0])
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
