"""Grade, compile and report the smoke cases of one folder, for `check` and `check --watch`."""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from common import paths
from common.commands import options as shared
from common.commands.progress import Progress
from common.errors import UserError, did_you_mean
from common.importing import import_torch
from common.printable import wrapped
from common.solutions import Solution

if TYPE_CHECKING:
    from common.commands.report import TierReport
    from common.grading.compiling import Compiler
    from common.grading.diagnosis import Contrast, Diagnosis
    from common.grading.fork_server import ForkServer
    from common.grading.problem import Problem
    from common.grading.sweep import Graded, Sweep, Verdicts
    from common.grading.worker import Worker
    from common.records.runs import Results
    from common.spec import Case, Direction, Op, Tier

Names = tuple[str, str]
"""The names of a solution and of a case."""


@contextlib.contextmanager
def started(device: str, verbose: bool) -> Iterator[tuple[ForkServer, Compiler]]:
    """Start a fork server and a compiler; import torch here while the server imports it."""
    from common.grading.fork_server import ForkServer

    with contextlib.closing(ForkServer(device, quiet=not verbose)) as server:
        import_torch()
        from common.grading.compiling import Compiler

        with Compiler(device, quiet=not verbose) as compiler:
            yield server, compiler


def sweep_of(server: ForkServer, memory: int | None, **options: Any) -> Sweep:
    """Return a sweep on the server's device that takes at most `memory` bytes of GPU memory."""
    from common.grading.memory import DeviceMemory
    from common.grading.sweep import Sweep

    device_memory = DeviceMemory.of(server.device, memory)
    return Sweep(server.device, server=server, memory=device_memory, **options)


def earlier_rows(server: ForkServer) -> Results:
    """Return the records of the server's device, after a check that its memory can be shared.

    Import the board's modules while the fork server imports Triton.
    """
    from common.board import terminal  # noqa: F401
    from common.grading.sharing import check_sharing
    from common.measure import machine
    from common.records import runs

    if server.device == "cuda":
        check_sharing(server)
    return runs.read(paths.RESULTS / machine.results_folder(server.device))


def grade_smoke_cases(
    chosen: Sequence[Solution],
    server: ForkServer,
    memory: int | None,
    first: Collection[Names] = (),
    only: Collection[Names] = (),
    before: Collection[Names] = (),
    thorough: Collection[Names] = (),
) -> Generator[Graded]:
    """Grade smoke cases, several at a time, since compilation takes most of their time on a GPU.

    Args:
        chosen: The solutions.
        server: The fork server.
        memory: The limit of GPU memory in bytes.
        first: The cases to grade first.
        only: The cases to grade; all by default.
        before: The cases to grade before those of `only`, all in one process for each solution.
        thorough: The cases to grade with every kind of call. One that failed before may have failed
            in a call that the next plan does not draw.
    """
    from common.grading import grade as grading
    from common.grading.sweep import TooLarge
    from common.grading.tiers import tier_cases

    def grade(problem: Problem, worker: Worker, repeats: int) -> Verdicts:
        every = (worker.solution.name, problem.case.name) in thorough
        return grading.grade_case(problem, worker, repeats, keep=True, thorough=every)

    asked = {*only, *before}
    at_once: dict[str, Any] = {"at_once": 1} if before else {}
    due = list(tier_cases(chosen, "smoke", server.device, budget=memory))
    told = set[str]()

    def late(worker: Worker) -> None:
        """Say once for each solution where it is."""
        name = worker.solution.name
        if name not in told and (place := worker.place):
            told.add(name)
            steps.say(f"{name} {worker.case}: no answer yet; it is at {place}")

    with (
        sweep_of(server, memory, overlap=True, grade=grade, late=late, **at_once) as sweep,
        Progress("smoke cases", count(chosen, due, asked)) as steps,
    ):
        for early, (op, cases) in itertools.product((True, False), due):

            def skip(solution: Solution, case: Case, early: bool = early) -> bool:
                later = ((solution.name, case.name) in first) != early
                return later or not is_asked(solution, case, asked)

            for graded in sweep.grade(op, cases, chosen, skip):
                if isinstance(graded, TooLarge):
                    steps.say(shared.left_out(op.name, graded.case.name, graded.reason))
                    steps.skip(solutions_of(op.name, chosen))
                    continue
                yield graded
                steps.done(f"{graded.solution.name} {graded.case.name}")


def named(case: str, chosen: Iterable[Solution], device: str, tiers: Sequence[Tier]) -> set[Names]:
    """Return each solution's name with the case's name.

    Raises:
        UserError: No op of the solutions has this case in the tiers.
    """
    from common import ops

    known = [
        known_case.name
        for op in map(ops.load, sorted({solution.op for solution in chosen}))
        for tier in tiers
        for known_case in op.tier(tier, device)
    ]
    if case not in known:
        raise UserError(f"no case {case} of {' or '.join(tiers)}{did_you_mean(case, known)}")
    return {(solution.name, case) for solution in chosen}


def is_asked(solution: Solution, case: Case, only: Collection[Names]) -> bool:
    """Return whether to run a solution on a case: always if `only` is empty."""
    return not only or (solution.name, case.name) in only


def count(
    chosen: Iterable[Solution],
    due: Iterable[tuple[Op[Any], Sequence[Case]]],
    only: Collection[Names],
) -> int:
    """Return the number of pairs of a solution and a case to run."""
    return sum(
        is_asked(solution, case, only)
        for op, cases in due
        for solution in chosen
        if solution.op == op.name
        for case in cases
    )


def compiled(graded_cases: Iterable[Graded], compiler: Compiler) -> Generator[Graded]:
    """Yield the cases as they are graded, then again the cases whose kernels do not compile."""
    submitted: list[tuple[Graded, Future[Graded]]] = []
    try:
        for graded in graded_cases:
            submitted.append((graded, compiler.submit(graded)))
            yield graded
        with Progress("cases compiled", len(submitted)) as steps:
            for graded, future in submitted:
                if future.result() != graded:
                    yield future.result()
                steps.done(f"{graded.solution.name} {graded.case.name}")
    finally:
        # `wait` would not return for a cancelled future
        wait([future for _, future in submitted if not future.cancel()])


def take_all(
    graded_cases: Iterable[Graded],
    report: TierReport,
    server: ForkServer,
    memory: int | None = None,
    stop: bool = False,
) -> None:
    """Report cases as they are graded, then the causes of the failures.

    Args:
        graded_cases: The cases.
        report: The report.
        server: The fork server, which runs further cases to explain failures.
        memory: The limit of GPU memory of the further cases, in bytes.
        stop: Whether to stop at the first failure.
    """
    from common.grading.diagnosis import causes

    kept = []
    for graded in graded_cases:
        report.add(graded.problem.op, graded.case, list(graded.verdicts.values()))
        kept.append(graded)
        if stop and report.failures:
            break
    report.end()
    if not report.failures:
        return
    with Progress("looking for the cause"):
        diagnoses = list(causes(kept))
        for cause in diagnoses:
            print(wrapped(str(cause)), flush=True)
        if stop:
            return
        for contrast in contrasts_of(kept, report, diagnoses, server, memory):
            print(wrapped(str(contrast)), flush=True)


def contrasts_of(
    kept: Sequence[Graded],
    report: TierReport,
    diagnoses: Sequence[Diagnosis],
    server: ForkServer,
    memory: int | None = None,
) -> Iterator[Contrast]:
    """Yield, for unexplained failures, the passing cases that differ in one property."""
    from common.grading.diagnosis import Failing, contrasts

    known = {(cause.solution, direction) for cause in diagnoses for direction in cause.directions}
    by_key = {(graded.solution.name, graded.case): graded for graded in kept}
    directions: dict[tuple[str, Case], list[Direction]] = defaultdict(list)
    for group, case in report.unexplained(known):
        directions[group.solution, case] += group.directions
    failing = [
        Failing(by_key[key].solution, by_key[key].problem.op, key[1], tuple(dict.fromkeys(of_case)))
        for key, of_case in directions.items()
    ]
    if failing:
        with sweep_of(server, memory, overlap=True) as sweep:
            yield from contrasts(sweep, failing)


def solutions_of(op: str, chosen: Sequence[Solution]) -> int:
    """Return the number of solutions of an op."""
    return sum(solution.op == op for solution in chosen)
