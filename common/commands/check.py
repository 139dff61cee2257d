"""`study check`: one folder, graded on the smoke cases and measured on the board's."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
from collections import defaultdict
from collections.abc import (
    Callable,
    Collection,
    Container,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING

from common.commands import options as shared
from common.commands import starting
from common.commands.steps import Steps
from common.solutions import OURS, Solution, imported, python_files

if TYPE_CHECKING:
    from common.board.table import About
    from common.commands.report import TierReport
    from common.grading.compiling import Compiler
    from common.grading.contrast import Contrast
    from common.grading.fork_server import ForkServer
    from common.grading.sweep import Graded
    from common.grading.what import Cause
    from common.records.lines import Record
    from common.records.runs import Results
    from common.spec import Case, Direction

PATIENCE = 0.3
"""The share of the time that `bench` takes for a row; a row of `check` is kept nowhere."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder's handle."""
    shared.running_arguments(parser)
    shared.handle_argument(parser)
    parser.add_argument("--picture", action="store_true", help="draw the wrong elements")
    parser.add_argument(
        "--watch", action="store_true", help="grade the smoke cases again after each save"
    )


def run(options: argparse.Namespace) -> int:
    """Grade and measure one folder: what is wrong with it and where it would stand on the board."""
    options.only = shared.one_of(options.handle, options.only, "HANDLE")
    if options.watch:
        from common.commands import watch

        return watch.run(options)
    chosen = shared.contributors(options)
    device = shared.device(options)
    verbose, picture, memory = options.verbose, options.picture, options.memory
    passed = check(chosen, device, verbose, shared.about, memory, picture)
    for line in (ours := list(imports_of_ours(chosen[0].path.parent))):
        print(line)
    return int(not passed or bool(ours))


def check(
    chosen: Sequence[Solution],
    device: str,
    verbose: bool,
    about: Callable[[Container[str]], Mapping[str, About]],
    memory: int | None = None,
    picture: bool = False,
) -> bool:
    """Print failures as they are found, then the folder's places; return whether none failed.

    The boards' `about` is asked for the names that they may show.
    """
    with (
        contextlib.closing(starting.fork_server(device, verbose)) as server,
        starting.compiler(device, verbose) as compiler,
    ):
        compiler.prepare(chosen)
        from common.commands.report import TierReport

        reports = (TierReport(tier, verbose, picture) for tier in ("smoke", "board"))
        smoke_report, board_report = reports
        earlier = starting.earlier_rows(server)
        known = about({row.solution for row in earlier.rows} | {each.name for each in chosen})
        found = compiled(smoke(chosen, server, memory), compiler)
        take_all(found, smoke_report, server, memory)
        rows = _measure_board(chosen, server, compiler, board_report, memory)
    if not rows:
        print("No case of the board fits this device: nothing was measured.")
        return False
    _show_places(rows, earlier, device, known)
    if not (failed := smoke_report.failed or board_report.failed):
        handle = chosen[0].handle
        right = f"All that is answered is right, in {smoke_report.share}"
        print(f"{right}. Next: nox -s bench leaderboard -- --only {handle}")
    elif not board_report.failed:
        print("The board's cases do not show what smoke found: fix it, it is wrong all the same.")
    return not failed


def imports_of_ours(folder: Path) -> Iterator[str]:
    """Yield a line for each file of the folder that imports this repository's own code."""
    for path in sorted(python_files(folder)):
        try:
            names = imported(path.read_text(errors="replace"))
        except SyntaxError:  # a verdict tells it
            continue
        if found := sorted(name for name in names if name.partition(".")[0] in OURS):
            place = f"{folder.name}/{path.relative_to(folder)}"
            yield f"{place} imports {found[0]}, which `nox -s test` refuses: copy what it needs"


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
    from common.grading.contrast import Failing, contrasts
    from common.grading.memory import Memory
    from common.grading.sweep import Sweep

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
        budget = Memory.of(server.device, memory)
        with Sweep(server.device, overlap=True, server=server, memory=budget) as sweep:
            yield from contrasts(sweep, failing)


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


def smoke(
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
    from common.grading.grade import grade
    from common.grading.memory import Memory
    from common.grading.sweep import Sweep, TooLarge
    from common.grading.tiers import tier_cases

    keeping = functools.partial(grade, keep=True)
    due = list(tier_cases(chosen, "smoke", server.device, budget=memory))
    budget = Memory.of(server.device, memory)
    count = sum(len(cases) * _solutions_of(op.name, chosen) for op, cases in due)
    with (
        Sweep(server.device, overlap=True, server=server, memory=budget, grade=keeping) as sweep,
        Steps("smoke cases", count) as steps,
    ):
        for early, (op, cases) in itertools.product((True, False), due):

            def skip(solution: Solution, case: Case, early: bool = early) -> bool:
                return ((solution.name, case.name) in first) != early

            for graded in sweep.grade(op, cases, chosen, skip):
                if isinstance(graded, TooLarge):
                    steps.say(shared.left_out(op.name, graded.case.name, graded.reason))
                    steps.skip(_solutions_of(op.name, chosen))
                    continue
                yield graded
                steps.done(f"{graded.solution.name} {graded.case.name}")


def _measure_board(
    chosen: Sequence[Solution],
    server: ForkServer,
    compiler: Compiler,
    report: TierReport,
    memory: int | None,
) -> list[Record]:
    """Return the rows of the board's cases, timed for a shorter time than `bench` does."""
    from common.grading.memory import Memory
    from common.grading.sweep import Sweep, TooLarge
    from common.grading.tiers import tier_cases
    from common.measure.rows import measure

    due = tier_cases(chosen, "board", server.device)
    count = sum(2 * len(cases) * _solutions_of(op.name, chosen) for op, cases in due)
    rows: list[Record] = []
    digests = {each: (each.digest, "") for each in chosen}  # the harness's is for records
    budget = Memory.of(server.device, memory)
    with (
        Sweep(server.device, server=server, memory=budget, grade=compiler.grade) as sweep,
        Steps("rows", count) as steps,
    ):
        for measured in measure(sweep, chosen, "check", digests, patience=PATIENCE):
            if isinstance(measured, TooLarge):
                case = measured.case.name
                steps.say(shared.left_out(measured.op.name, case, measured.reason))
                steps.skip(2 * _solutions_of(measured.op.name, chosen))
                continue
            problem = measured[0].graded.problem
            report.add(problem.op, problem.case, [each.verdict for each in measured])
            for each in measured:
                rows.append(each.row)
                steps.done(f"{each.row.solution} {each.row.case}")
    report.end()
    return rows


def _solutions_of(op: str, chosen: Sequence[Solution]) -> int:
    return sum(solution.op == op for solution in chosen)


def _show_places(
    rows: Sequence[Record], earlier: Results, device: str, about: Mapping[str, About]
) -> None:
    """Show the board as it would be with these rows in it."""
    from common.board import terminal
    from common.board.ranking import rank

    if not earlier.rows:
        print("There is no board of this device yet: nox -s bench leaderboard makes one.")
    if device == "cpu":
        print("Nothing is timed without a GPU: the board shows the coverage of each solution.")
    latest = {row.key: row for row in [*earlier.latest(), *rows] if row.solution in about}
    mine = {(row.op, row.track) for row in rows}
    handle = rows[0].solution.partition("/")[0]
    for track in rank(latest.values()):
        if (track.op, track.name) in mine:
            terminal.show_track(track, about, device != "cpu", terminal.console(), handle)
