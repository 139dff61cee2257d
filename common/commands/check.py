"""`study check`: grade one folder on the smoke cases and measure it on the board's cases."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from common.commands import options as shared
from common.commands import smoke
from common.commands.progress import Progress
from common.commands.smoke import Names
from common.disk_cache import DiskCache
from common.printable import printable, wrapped
from common.solutions import Solution, imports_of_ours

if TYPE_CHECKING:
    from common.board.table import About
    from common.commands.report import TierReport
    from common.grading.compiling import Compiler
    from common.grading.fork_server import ForkServer
    from common.records.lines import Record
    from common.records.runs import Results
    from common.spec import Case

TIME_SCALE = 0.3
"""The time for a row relative to `bench`; shorter, since `check` records no row."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder's handle."""
    shared.running_arguments(parser)
    shared.handle_argument(parser)
    parser.add_argument("--picture", action="store_true", help="draw the wrong elements")
    parser.add_argument("-x", "--exitfirst", action="store_true", help="end at the first failure")
    parser.add_argument("--case", metavar="NAME", help="only this case, with every kind of call")
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--lf",
        "--last-failed",
        action="store_true",
        dest="last_failed",
        help="only the cases that failed last; all where none did",
    )
    either.add_argument(
        "--hint", action="store_true", help="the next exercise of the path, and a hint"
    )
    either.add_argument(
        "--watch",
        action="store_true",
        help="grade the smoke cases again after each save; with --case, time that case too",
    )


def run(options: argparse.Namespace) -> int:
    """Grade and measure one folder; print its failures, or its places on the board."""
    options.only = shared.one_of(options.handle, options.only, "HANDLE")
    if options.watch:
        from common.commands import watch

        return watch.run(options, measure_board)
    if options.hint:
        from common.commands import hint

        return hint.run(options)
    chosen = shared.contributors(options)
    if refused := list(imports_of_ours(chosen[0].path.parent)):
        print("\n".join(refused))
        return 1
    return int(not _check(chosen, shared.device(options), options))


def _check(chosen: Sequence[Solution], device: str, options: argparse.Namespace) -> bool:
    """Print the failures, or the folder's places; return whether there is no failure."""
    handle, memory, stop = chosen[0].handle, options.memory, options.exitfirst
    with smoke.started(device, options.verbose) as (server, compiler):
        compiler.prepare(chosen)
        from common.commands.report import TierReport

        smoke_report, board_report = (
            TierReport(tier, options.verbose, options.picture) for tier in ("smoke", "board")
        )
        earlier = smoke.earlier_rows(server)
        about = shared.about({row.solution for row in earlier.rows} | {s.name for s in chosen})
        cache = DiskCache("failed", handle, str)
        # each failed case, with the cases that its process must answer before, so that it fails
        failed = {(name, case): after for name, case, *after in cache.found.get("cases", ())}
        if options.case:
            only = smoke.named(options.case, chosen, device, ("smoke", "board"))
        else:
            names = {solution.name for solution in chosen}
            only = {key for key in failed if options.last_failed and key[0] in names}
        before = {
            (name, case) for name, failing in only for case in failed.get((name, failing), ())
        }
        if before := before - only:
            print(f"First come {len(before)} cases after which a case failed, in one process.")
        rows: list[Record] = []
        try:
            with (
                closing(
                    smoke.grade_smoke_cases(
                        chosen, server, memory, only=only, before=before, thorough=only
                    )
                ) as cases,
                closing(smoke.compiled(cases, compiler)) as graded_cases,
            ):
                smoke.take_all(graded_cases, smoke_report, server, memory, stop)
            # the failure's cause ends the output, and the board's cases would repeat the failure
            answers = not smoke_report.failed and smoke_report.share
            if not smoke_report.failures and (answers or only):
                rows = measure_board(chosen, server, compiler, board_report, memory, only, stop)
        finally:
            for report in (smoke_report, board_report):
                failed = {key: after for key, after in failed.items() if key not in report.asked}
            failed |= smoke_report.failures | dict.fromkeys(board_report.failures, ())
            cache.found = {"cases": sorted([*key, *after] for key, after in failed.items())}
            cache.save()
    if only:
        board_report.end()
        return not (smoke_report.failures or board_report.failures)
    if not answers:  # in no case, which is no failure if the folder needs a GPU
        return not smoke_report.failed
    if not rows:
        print("No case of the board fits this device: nothing was measured.")
        return False
    _show_places(rows, earlier, device, about)
    board_report.end()
    if not board_report.failed:
        for line in conclusion(rows, smoke_report.share):
            print(wrapped(printable(line)))
    return not board_report.failed


def conclusion(rows: Sequence[Record], share: str) -> Iterator[str]:
    """Yield what the folder lacks for a place in a track, and the next step.

    Args:
        rows: The folder's rows, without a failure.
        share: The share of the smoke cases that are answered.
    """
    from common.board.ranking import rank, unranked

    tracks = rank(rows)
    yield from unranked(tracks)
    handle = rows[0].solution.partition("/")[0]
    if any(not entry.missing for track in tracks for entry in track.entries):
        next_step = f"Next: nox -s bench leaderboard -- --only {handle}"
        yield f"All that is answered is right, in {share}. {next_step}"
    else:
        yield f"No track ranks {handle}, although all that is answered is right, in {share}"


def measure_board(
    chosen: Sequence[Solution],
    server: ForkServer,
    compiler: Compiler,
    report: TierReport,
    memory: int | None,
    only: Collection[Names] = (),
    stop: bool = False,
) -> list[Record]:
    """Return the rows of the board's cases, with a shorter timing than `bench`'s.

    With `stop`, return the rows up to the first failure.
    """
    from common.grading.grade import grade_case
    from common.grading.sweep import TooLarge
    from common.grading.tiers import tier_cases
    from common.measure.rows import Measurement

    due = list(tier_cases(chosen, "board", server.device, budget=memory))
    count = 2 * smoke.count(chosen, due, only)

    def skip(solution: Solution, case: Case) -> bool:
        return not smoke.is_asked(solution, case, only)

    rows: list[Record] = []
    # only records need the harness's digest
    digests = {solution: (solution.digest, "") for solution in chosen}
    grade = functools.partial(grade_case, thorough=bool(only))
    with smoke.sweep_of(server, memory, grade=grade) as sweep, Progress("rows", count) as steps:
        rows_of = Measurement(sweep, digests, time_scale=TIME_SCALE, through=compiler.behind)
        for measured in rows_of.measure(chosen, due, skip):
            if isinstance(measured, TooLarge):
                case = measured.case.name
                steps.say(shared.left_out(measured.op.name, case, measured.reason))
                steps.skip(2 * smoke.solutions_of(measured.op.name, chosen))
                continue
            problem = measured[0].graded.problem
            report.add(problem.op, problem.case, [direction.verdict for direction in measured])
            for direction in measured:
                rows.append(direction.row)
                steps.done(f"{direction.row.solution} {direction.row.case}")
            if stop and report.failures:
                break
    return rows


def _show_places(
    rows: Sequence[Record], earlier: Results, device: str, about: Mapping[str, About]
) -> None:
    """Print the boards with these rows in the place of the folder's earlier rows."""
    from common.board import terminal
    from common.board.ranking import rank

    if not earlier.rows:
        print("There is no board of this device yet: nox -s bench leaderboard makes one.")
    if device == "cpu":
        print("Nothing is timed without a GPU: the board shows the coverage of each solution.")
    latest = {row.key: row for row in [*earlier.latest(), *rows] if row.solution in about}
    tracks = {(row.op, row.track) for row in rows}
    handle = rows[0].solution.partition("/")[0]
    for track in rank(latest.values()):
        if (track.op, track.name) in tracks:
            terminal.show_track(track, about, device != "cpu", terminal.console(), handle)
