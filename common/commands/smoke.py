"""The smoke cases of one folder, graded, compiled and told, for `check` and its `--watch`."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from common import paths
from common.commands import options as shared
from common.commands.steps import Steps
from common.importing import import_torch
from common.solutions import Solution

if TYPE_CHECKING:
    from common.commands.report import TierReport
    from common.grading.compiling import Compiler
    from common.grading.fork_server import ForkServer
    from common.grading.sweep import Graded, Sweep
    from common.grading.what import Cause, Contrast
    from common.records.runs import Results
    from common.spec import Case, Direction


@contextlib.contextmanager
def started(device: str, verbose: bool) -> Iterator[tuple[ForkServer, Compiler]]:
    """Start a fork server and a compiler; while the server imports torch, this process does too."""
    from common.grading.fork_server import ForkServer

    with contextlib.closing(ForkServer(device, quiet=not verbose)) as server:
        import_torch()
        from common.grading.compiling import Compiler

        with Compiler(device, quiet=not verbose) as compiler:
            yield server, compiler


def sweep_of(server: ForkServer, memory: int | None, **how: Any) -> Sweep:
    """Return a sweep on the server's device that takes so many bytes of a GPU's memory at most."""
    from common.grading.memory import Memory
    from common.grading.sweep import Sweep

    return Sweep(server.device, server=server, memory=Memory.of(server.device, memory), **how)


def earlier_rows(server: ForkServer) -> Results:
    """Return what was measured on the server's device, with which a process shares its memory.

    Import what the board will need, while the fork server imports Triton.
    """
    from common.board import terminal  # noqa: F401
    from common.grading.sharing import check_sharing
    from common.measure import machine
    from common.records import runs

    if server.device == "cuda":
        check_sharing(server)
    return runs.read(paths.RESULTS / machine.results_folder(server.device))


def grade(
    chosen: Sequence[Solution],
    server: ForkServer,
    memory: int | None,
    first: Collection[tuple[str, str]] = (),
) -> Generator[Graded]:
    """Grade the smoke cases, several at once: on a GPU most of their time is compilation.

    Args:
        chosen: The solutions.
        server: The fork server.
        memory: The bytes of a GPU's memory to take at most.
        first: Names of a solution and of a case each; these are asked before all others.
    """
    from common.grading import grade as grading
    from common.grading.sweep import TooLarge
    from common.grading.tiers import tier_cases

    keeping = functools.partial(grading.grade, keep=True)
    due = list(tier_cases(chosen, "smoke", server.device, budget=memory))
    count = sum(len(cases) * solutions_of(op.name, chosen) for op, cases in due)
    with (
        sweep_of(server, memory, overlap=True, grade=keeping) as sweep,
        Steps("smoke cases", count) as steps,
    ):
        for early, (op, cases) in itertools.product((True, False), due):

            def skip(solution: Solution, case: Case, early: bool = early) -> bool:
                return ((solution.name, case.name) in first) != early

            for graded in sweep.grade(op, cases, chosen, skip):
                if isinstance(graded, TooLarge):
                    steps.say(shared.left_out(op.name, graded.case.name, graded.reason))
                    steps.skip(solutions_of(op.name, chosen))
                    continue
                yield graded
                steps.done(f"{graded.solution.name} {graded.case.name}")


def compiled(found: Iterable[Graded], compiler: Compiler) -> Generator[Graded]:
    """Yield the cases as they are graded, then again each one whose kernels do not compile."""
    judged: list[tuple[Graded, Future[Graded]]] = []
    try:
        for graded in found:
            judged.append((graded, compiler.submit(graded)))
            yield graded
        with Steps("cases compiled", len(judged)) as steps:
            for graded, future in judged:
                if future.result() != graded:
                    yield future.result()
                steps.done(f"{graded.solution.name} {graded.case.name}")
    finally:
        wait([future for _, future in judged if not future.cancel()])  # it awaits no cancelled one


def take_all(
    found: Iterable[Graded], report: TierReport, server: ForkServer, memory: int | None = None
) -> None:
    """Report cases as they are graded, then what they have in common.

    Args:
        found: The cases.
        report: The report.
        server: The fork server, which has solutions answer further cases where some fail.
        memory: The bytes of a GPU's memory that these take at most.
    """
    from common.grading.what import causes

    kept = []
    for graded in found:
        report.add(graded.problem.op, graded.case, list(graded.verdicts.values()))
        kept.append(graded)
    report.end()
    told = list(causes(kept))
    for cause in told:
        print(cause, flush=True)
    for contrast in told_apart(kept, report, told, server, memory):
        print(contrast, flush=True)


def told_apart(
    kept: Sequence[Graded],
    report: TierReport,
    told: Sequence[Cause],
    server: ForkServer,
    memory: int | None = None,
) -> Iterator[Contrast]:
    """Yield the cases that pass without one property, of the failures that nothing explains."""
    from common.grading.what import Failing, contrasts

    known = {(cause.solution, direction) for cause in told for direction in cause.directions}
    asked = {(each.solution.name, each.case): each for each in kept}
    directions: dict[tuple[str, Case], list[Direction]] = defaultdict(list)
    for group, case in report.unexplained(known):
        directions[group.solution, case] += group.directions
    failing = [
        Failing(asked[key].solution, asked[key].problem.op, key[1], tuple(dict.fromkeys(several)))
        for key, several in directions.items()
    ]
    if failing:
        with sweep_of(server, memory, overlap=True) as sweep:
            yield from contrasts(sweep, failing)


def solutions_of(op: str, chosen: Sequence[Solution]) -> int:
    """Return the number of solutions of an op."""
    return sum(solution.op == op for solution in chosen)
