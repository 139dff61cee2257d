"""Grade and measure the cases of one folder, for `check`, `check --watch` and `check --hint`."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Generator, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, TypeVar

from common import ops
from common.commands.answers import Failures, Names
from common.commands.progress import Progress
from common.commands.report import TierReport
from common.commands.result import Summary
from common.errors import ServerEnded
from common.grading.compiling import Compiler
from common.grading.device import left_out, tier_cases
from common.grading.diagnosis import causes, contrast
from common.grading.fork_server import ForkServer
from common.grading.grade import grade_case
from common.grading.problem import Problem
from common.grading.sweep import Graded, Sweep, TooLarge, Verdicts
from common.grading.worker import Worker
from common.measure.rows import Measurement
from common.ops._names import of_ops
from common.records.lines import Record
from common.solutions import Solution
from common.spec import Case, Op

T = TypeVar("T")


@dataclass(frozen=True)
class Asked:
    """The solutions of a folder, and which of their cases to run."""

    solutions: Sequence[Solution]
    cases: Set[Names] = frozenset()
    """The cases to run, with every kind of call and in one process; empty for all cases."""
    failed: Failures = field(default_factory=dict)
    """The latest failures, which are graded first. Those that depend on earlier calls are graded
    in their place, with every kind of call, since the next plan may not draw that call."""
    due: Sequence[tuple[Op[Any], Sequence[Case]]] = ()
    """The cases to measure in place of the board's, if the user named one."""

    def has(self, solution: Solution, case: Case) -> bool:
        """Return whether to run a solution on a case."""
        return not self.cases or (solution.name, case.name) in self.cases

    def is_first(self, solution: Solution, case: Case) -> bool:
        """Return whether to grade a case before the others."""
        return not self.failed.get((solution.name, case.name), True)

    def is_thorough(self, solution: Solution, case: Case) -> bool:
        """Return whether to make every kind of call."""
        name = solution.name, case.name
        return name in self.cases or self.failed.get(name) is not None

    def count(self, due: Iterable[tuple[Op[Any], Sequence[Case]]]) -> int:
        """Return the number of pairs of a solution and a case of the tier `due` to run."""
        return sum(self.has(solution, case) for op, cases in due
                   for solution in self.solutions if solution.op == op.name
                   for case in cases)  # fmt: skip


@dataclass(frozen=True)
class Grader:
    """The processes and the memory with which a command runs a folder on one device."""

    server: ForkServer
    compiler: Compiler
    stop: bool = False
    """Whether to stop at the first failure."""

    @property
    def device(self) -> str:
        """`cpu` or `cuda`."""
        return self.server.device

    def interrupt(self) -> None:
        """End the requests under way; what waits for them raises ServerEnded until `resume`."""
        self.server.interrupt()
        self.compiler.interrupt()

    def resume(self) -> None:
        """Go on after `interrupt`, with the solutions' files as they are now."""
        self.server.resume()
        self.compiler.resume()

    def named(self, case: str, solutions: Sequence[Solution]) -> Asked:
        """Return the solutions with a case, of the smoke cases or any other that an op can say.

        An invalid op is skipped with a line.

        Raises:
            UserError: No op of the solutions can say the name.
        """
        valid = ops.valid(solution.op for solution in solutions)
        smoke = {each.name for op in valid for each in op.tier("smoke", self.device)}
        if names := {each.name for _, each in of_ops(valid, case)} & smoke:
            return Asked(solutions, {(own.name, name) for own in solutions for name in names})
        due = list(tier_cases(solutions, "board", self.device, names=[case]))
        cases = {(solution.name, each.name) for solution in solutions
                 for op, found in due for each in found if op.name == solution.op}  # fmt: skip
        return Asked(solutions, cases, due=due)

    # --- smoke cases ------------------------------------------------------------------------------

    def smoke_cases(self, asked: Asked) -> Generator[Graded]:
        """Yield the smoke cases as they are graded, and again those that do not compile.

        They are graded several at a time: most of their time is compilation.
        """
        late_names = set[str]()

        def grade(problem: Problem, worker: Worker, repeats: int) -> Verdicts:
            if refusal := self.compiler.refusal(problem, worker.solution):
                return refusal
            thorough = asked.is_thorough(worker.solution, problem.case)
            worker.late = functools.partial(say_where, worker, problem.case)
            return grade_case(problem, worker, repeats, keep=True, thorough=thorough)

        def say_where(worker: Worker, case: Case) -> None:
            """Say the line of a late solution, once for each."""
            name = worker.solution.name
            if name not in late_names and (place := worker.place):
                late_names.add(name)
                steps.say(f"{name} {case.name}: no answer yet; it is at {place}")

        due = list(tier_cases(asked.solutions, "smoke", self.device))
        at_once: dict[str, Any] = {"at_once": 1} if asked.cases else {}
        with (
            Sweep(self.device, server=self.server, overlap=True, grade=grade, **at_once) as sweep,
            Progress("smoke cases", asked.count(due), transient=True) as steps,
        ):

            def graded() -> Iterator[Graded]:
                for first, (op, cases) in itertools.product((True, False), due):

                    def skip(solution: Solution, case: Case, first: bool = first) -> bool:
                        later = asked.is_first(solution, case) != first
                        return later or not asked.has(solution, case)

                    results = sweep.grade(op, cases, asked.solutions, skip)
                    for result in _fitting(results, asked, steps):
                        yield result
                        steps.done(f"{result.solution.name} {result.case.name}")
                steps.doing("compiling")

            yield from self.compiler.behind(graded(), early=True)

    def report_smoke(self, asked: Asked, report: TierReport) -> list[Summary]:
        """Report the smoke cases as they are graded; return the outcomes, with causes of failures.

        Of failures without a cause, find the passing cases that differ in one property.

        Raises:
            ServerEnded: `interrupt` was called, so that the answers are outdated.
        """
        seen = []
        with contextlib.closing(self.smoke_cases(asked)) as cases:
            for graded in self._wanted(cases, report):
                report.add(graded.problem.op, graded.case, list(graded.verdicts.values()))
                seen.append(graded)
        if not report.failures:
            return report.summaries("smoke", self.device)
        by_names = {(each.solution.name, each.case.name): each for each in seen}
        with (
            Progress("looking for the cause", transient=True),
            Sweep(self.device, server=self.server, overlap=True) as sweep,
        ):

            @functools.cache
            def changes(names: Names) -> str:
                return "" if self.stop else contrast(sweep, by_names[names])

            return report.summaries("smoke", self.device, list(causes(seen)), changes)

    # --- the board's cases ------------------------------------------------------------------------

    def measure_board(self, asked: Asked, report: TierReport) -> list[Record]:
        """Report the board's cases and return their rows, timed for a shorter time than by `bench`.

        Raises:
            ServerEnded: `interrupt` was called, so that the rows are outdated.
        """
        board = tier_cases(asked.solutions, "board", self.device)
        due = asked.due or list(board)
        rows: list[Record] = []
        # only records need the harness's digest
        digests = {solution: (solution.digest, "") for solution in asked.solutions}
        grade = functools.partial(grade_case, thorough=bool(asked.cases))
        with (
            Sweep(self.device, server=self.server, grade=grade) as sweep,
            Progress("board cases", asked.count(due), transient=True) as steps,
        ):
            measurement = Measurement(sweep, digests, brief=True, through=self.compiler.behind)
            measured = measurement.measure(
                asked.solutions, due, lambda solution, case: not asked.has(solution, case)
            )
            for directions in self._wanted(_fitting(measured, asked, steps), report):
                graded = directions[0].graded
                report.add(graded.problem.op, graded.case, [each.verdict for each in directions])
                rows += [each.row for each in directions]
                steps.done(f"{graded.solution.name} {graded.case.name}")
        return rows

    def _wanted(self, results: Iterable[T], report: TierReport) -> Iterator[T]:
        """Yield the results until the report has a failure, with `stop`, or `interrupt` is called.

        Raises:
            ServerEnded: It was called.
        """
        for result in results:
            if self.server.interrupted:
                break
            yield result
            if self.stop and report.failures:
                break
        if self.server.interrupted:
            raise ServerEnded


def _fitting(results: Iterable[T | TooLarge], asked: Asked, steps: Progress) -> Iterator[T]:
    """Yield the results of cases that fit the device; say which do not, and skip their steps."""
    for result in results:
        if isinstance(result, TooLarge):
            steps.say(f"study: {left_out(result.op, result.case, result.reason)}")
            steps.skip(asked.count([(result.op, [result.case])]))
        else:
            yield result
