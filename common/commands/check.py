"""`study check`: grade one folder on the smoke cases and measure it on the board's cases."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from common.commands import options as shared
from common.commands.grader import Asked, Grader, started
from common.disk_cache import DiskCache
from common.printable import printable, wrapped
from common.solutions import Solution, imports_of_ours

if TYPE_CHECKING:
    from common.board.ranking import About
    from common.records.lines import Record
    from common.records.runs import Results


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

        return watch.run(options)
    if options.hint:
        from common.commands import hint

        return hint.run(options)
    solutions = shared.contributors(options)
    if refused := list(imports_of_ours(solutions[0].path.parent)):
        print("\n".join(refused))
        return 1
    with started(options) as grader:
        return int(not _check(solutions, grader, options))


def _check(solutions: Sequence[Solution], grader: Grader, options: argparse.Namespace) -> bool:
    """Print the failures, or the folder's places; return whether there is no failure."""
    grader.compiler.prepare(solutions)
    from common.commands.report import TierReport

    smoke, board = (
        TierReport(tier, options.verbose, options.picture) for tier in ("smoke", "board")
    )
    earlier = grader.earlier_rows()
    about = shared.about({row.solution for row in earlier.rows} | {s.name for s in solutions})
    cache = DiskCache("failed", solutions[0].handle, str)
    # each failed case, with the cases that its process must answer before, so that it fails
    found = cache.found.get("cases", ())
    failed = {(name, case): tuple(after) for name, case, *after in found}
    if options.case:
        cases = grader.named(options.case, solutions)
    else:
        names = {solution.name for solution in solutions}
        cases = {key for key in failed if options.last_failed and key[0] in names}
    after = {key: failed[key] for key in cases & failed.keys()}
    asked = Asked(solutions, cases, after=after, stop=options.exitfirst)
    if before := asked.before:
        print(f"First come {len(before)} cases after which a case failed, in one process.")
    rows: list[Record] = []
    try:
        grader.report_smoke(asked, smoke)
        # the failure's cause ends the output, and the board's cases would repeat the failure
        answers = not smoke.failed and smoke.share
        if not smoke.failures and (answers or cases):
            rows = grader.measure_board(asked, board)
    finally:
        # the cases before a board's case are the board's, which are not asked again before it
        known = board.update(smoke.update(failed)) | dict.fromkeys(board.failures)
        cache.found = {"cases": sorted([*key, *(after or ())] for key, after in known.items())}
        cache.save()
    if cases:
        board.end()
        return not (smoke.failures or board.failures)
    if not answers:  # in no case, which is no failure if the folder needs a GPU
        return not smoke.failed
    if not rows:
        print("No case of the board fits this device: nothing was measured.")
        return False
    _show_places(rows, earlier, grader.device, about)
    board.end()
    if not board.failed:
        for line in conclusion(rows, smoke.share):
            print(wrapped(printable(line)))
    return not board.failed


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
    for track in rank(latest.values(), about, timed=device != "cpu"):
        if (track.op, track.name) in tracks:
            terminal.show_track(track, terminal.console(), handle)
