"""Solutions and cases on one device, case by case: a case's problem is made once for all."""

from __future__ import annotations

import functools
import itertools
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from queue import LifoQueue
from typing import Any

from common.draws import Draws, entropy
from common.grading.deaths import LIVES
from common.grading.fork_server import ForkServer
from common.grading.grade import grade
from common.grading.graded import Graded, TooLarge
from common.grading.memory import Footprint, Memory
from common.grading.pending import Answered, PendingCase, must_be_asked_again, wait_for_any
from common.grading.pools import threads
from common.grading.problem import Problem, make_problem
from common.grading.room import Room
from common.grading.second_try import SecondTry, Verdicts
from common.grading.sharing import require_sharing
from common.grading.undecided import Undecided
from common.grading.worker import Worker
from common.paths import PEERS
from common.processes import cores
from common.solutions import Solution
from common.spec import Case, Op

STAND_IN = -2
"""The lane of eager's worker that is asked in a solution's place."""
MOST_AT_ONCE = 16
"""Cases that are graded at the same time, however many cores there are."""
Grade = Callable[[Problem, Worker, int], Verdicts]
AHEAD = 4
"""Cases that are graded before they are timed: mostly torch.compile's compilation is waited for."""
LATE = 100
"""Cases under way and cases that are done, but wait for an older one, whose results come first."""


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
        memory: Memory | None = None,
        grade: Grade = grade,
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
            memory: What the run may take of the GPU's memory, by default all that is free.
            grade: Returns a worker's verdicts on a problem, after so many further answers.

        Raises:
            UserError: The GPU's memory cannot be shared; a server that is given is not asked.
        """
        self.device, self._deadline, self._lives = device, deadline, lives
        self._overlap = device == "cpu" if overlap is None else overlap
        self._verdicts = grade
        self._owns_server = server is None
        self._server = ForkServer(device, quiet) if server is None else server
        self.room = Room(memory or Memory.of(device))
        if self._owns_server and device == "cuda":
            require_sharing(self._server)
        self._workers: dict[tuple[Solution, int], Worker] = {}
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

    def worker(self, solution: Solution, lane: int = 0) -> Worker:
        """Return the solution's worker; cases that are graded at the same time have a lane each."""
        if (solution, lane) not in self._workers:
            limit = self.room.memory.limit if self.device == "cuda" else None
            worker = Worker(self._server, solution, self._deadline, self._lives, limit)
            self._workers[solution, lane] = worker
            self.room.workers.append(worker)
        return self._workers[solution, lane]

    def grade(
        self,
        op: Op[Any],
        cases: Iterable[Case],
        solutions: Iterable[Solution],
        skip: Callable[[Solution, Case], bool] = lambda solution, case: False,
        repeats: int = 0,
    ) -> Iterator[Graded | TooLarge]:
        """Grade every solution of the op on every case that is not skipped, in the cases' order.

        All is drawn anew at each call. What is drawn for a case depends on all the cases, skipped
        ones too, but not on the order in which they are graded; a case that is given twice gets
        the same twice.

        A few cases that died in forward come later: see `undecided`.

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
            repeats: Further answers to each case; see `grade.grade`.
        """
        ours = [solution for solution in solutions if solution.op == op.name]
        cases = list(cases)
        drawn = Draws(entropy(), tuple((case.name, case.kind) for case in cases))
        together = self._together(op, cases)
        undecided = Undecided()
        for start in range(0, len(ours), together):
            group = ours[start : start + together]
            for graded in self._grade_group(op, cases, drawn, group, skip, repeats):
                yield from undecided.take(graded)
            yield from undecided.rest()

    def _together(self, op: Op[Any], cases: Sequence[Case]) -> int:
        """Return the number of solutions that go through the cases together."""
        # a far one waits for others
        near = [Footprint.by(op, case) for case in cases if not case.span]
        return min((self.room.together(each, not self._overlap) for each in near), default=1)

    def _grade_group(
        self,
        op: Op[Any],
        cases: Sequence[Case],
        drawn: Draws,
        ours: Sequence[Solution],
        skip: Callable[[Solution, Case], bool],
        repeats: int,
    ) -> Iterator[Graded | TooLarge]:
        lanes, ahead = self._lanes(op, cases, len(ours))
        # the last one first: its process runs, with shared memory of about the size
        free, pending = {each: LifoQueue[Worker]() for each in ours}, deque[PendingCase]()
        for solution, lane in itertools.product(ours, range(lanes)):
            free[solution].put(self.worker(solution, lane))
        for case in cases:
            needed = Room.needed(Footprint.by(op, case), len(ours))
            while self._is_full(pending, ahead, needed):
                yield from self._results(op, pending, repeats)
            for each in pending:
                each.let_go()
            if due := [free[solution] for solution in ours if not skip(solution, case)]:
                make = functools.partial(self._problem, op, case, drawn)
                pending.append(self._start(op, case, make, due, repeats))
        while pending:
            yield from self._results(op, pending, repeats)
        if self.device == "cuda":  # the next op's workers need the memory
            for solution in ours:
                for lane in range(lanes):
                    self.worker(solution, lane).release()

    def _is_full(self, pending: Sequence[PendingCase], ahead: int, needed: int) -> bool:
        """Return whether no further case may start: there are enough, or it needs more memory."""
        running = [each for each in pending if not (self._overlap and each.done)]
        if len(running) >= ahead or len(pending) == LATE:
            return True
        return bool(running) and not self.room.holds([needed, *(each.needed for each in running)])

    def _lanes(self, op: Op[Any], cases: Iterable[Case], solutions: int) -> tuple[int, int]:
        """Return how many cases are graded at once, and how many are under way at most.

        Cores limit the first, and the GPU's memory by what a case takes on average: a large one
        starts once there is room. A case under way beyond the lanes has its problem made, and a
        solution's worker that is done with one case begins with the next.
        """
        if not self._overlap and self.device == "cpu":  # nothing is compiled
            return 1, 1
        lanes = self._cores // max(solutions, 1) if self._overlap else min(AHEAD, self._cores)
        each = (Room.needed(Footprint.by(op, case), solutions) for case in cases)
        usual = statistics.fmean([*filter(None, each)] or [1])
        lanes = max(min(lanes, int(self.room.memory.left // usual)), 1)
        return lanes, 2 * lanes if self._overlap else lanes

    def _start(
        self,
        op: Op[Any],
        case: Case,
        make: Callable[..., Problem],
        due: Iterable[LifoQueue[Worker]],
        repeats: int,
    ) -> PendingCase:
        footprint = Footprint.by(op, case)
        problem = self._makers.submit(make)

        def run(free: LifoQueue[Worker]) -> Answered:
            problem.exception()  # waits, before a worker is taken; `wait` would miss a cancellation
            worker = free.get()

            def ask() -> Verdicts:
                made = problem.result()
                with self.room.taken(worker, footprint):
                    return self._grade(made, worker, repeats)

            try:
                return Answered.by(worker, ask)
            finally:
                free.put(worker)

        jobs = [self._graders.submit(run, each) for each in due]
        return PendingCase(case, make, problem, jobs, Room.needed(footprint, len(jobs)))

    def _problem(self, op: Op[Any], case: Case, drawn: Draws, frugal: bool = False) -> Problem:
        footprint = Footprint.by(op, case)
        frugal = frugal or footprint.frugal(self.room.memory.budget)
        self.room.make_for_problem(footprint)
        return make_problem(op, case, drawn, self.device, frugal)

    def _grade(self, problem: Problem, worker: Worker, repeats: int) -> Verdicts:
        """Return the verdicts; free the worker's memory if a far view spans it, for the next."""
        try:
            return self._verdicts(problem, worker, repeats)
        finally:
            if self.device == "cuda" and problem.case.span:
                worker.release()

    def _results(
        self, op: Op[Any], pending: deque[PendingCase], repeats: int
    ) -> Iterator[Graded | TooLarge]:
        """Yield the results of the oldest case, or wait until another one makes a lane free.

        Where they may be timed, yield those of all, at the end: all problems are let go by then.
        """
        if self._overlap:
            if pending[0].done or len(pending) == LATE:
                yield from self._finish(op, pending, repeats)
            else:
                wait_for_any(pending)
            return
        found = [each for _ in range(len(pending)) for each in self._finish(op, pending, repeats)]
        yield from found

    def _finish(
        self, op: Op[Any], pending: deque[PendingCase], repeats: int
    ) -> Iterator[Graded | TooLarge]:
        """Yield the verdicts of the case that was started first."""
        oldest = pending.popleft()
        oldest.wait()
        first = [job.result() for job in oldest.jobs]
        again = self._second_try(op, oldest, repeats)
        found: list[tuple[Worker, Verdicts, frozenset[bool]]] = []
        too_large = ""
        for each in first:
            verdicts = each.verdicts
            if must_be_asked_again(each):
                for other in pending:
                    other.wait()
                tried = too_large or again.verdicts(each.worker)
                verdicts, too_large = (None, tried) if isinstance(tried, str) else (tried, "")
            if verdicts is not None:
                found.append((each.worker, verdicts, each.differentiable))
        if again.problem:
            outline = again.problem.outline
            again.problem = None  # its tensors are let go
            for worker, verdicts, differentiable in found:
                yield Graded(worker, outline, verdicts, differentiable)
        if too_large:
            yield TooLarge(op, oldest.case, too_large)

    def _second_try(self, op: Op[Any], case: PendingCase, repeats: int) -> SecondTry:
        """Return the means to ask the case again; it takes over the problem."""
        problem = None if case.problem.exception() else case.problem.result()
        case.problem = Future()
        return SecondTry(
            room=self.room,
            make=case.make,
            grade=functools.partial(self._grade, repeats=repeats),
            eager=self.worker(eager_of(op), STAND_IN),
            problem=problem,
        )


def eager_of(op: Op[Any]) -> Solution:
    """Return eager's own solution of an op."""
    return Solution(PEERS / "eager" / f"{op.name}.py", op.name)
