"""`study check`: grade one folder on the smoke cases and measure it on the board's cases."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from common import paths
from common.commands import options as shared
from common.disk_cache import DiskCache
from common.errors import UserError
from common.folders import imports_of_ours, left_out
from common.printable import say
from common.processes import import_torch, require
from common.solutions import Solution

if TYPE_CHECKING:
    from common.commands.grader import Grader
    from common.commands.report import Failures, Names, TierReport
    from common.records.lines import Record


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder's handle."""
    shared.add(parser, *shared.RUNNING, "handle")
    parser.add_argument("--picture", action="store_true", help="draw the wrong elements")
    parser.add_argument("-x", "--exitfirst", action="store_true", help="end at the first failure")
    parser.add_argument("--case", metavar="NAME", help="only this case, with every kind of call")
    either = parser.add_mutually_exclusive_group()
    for *names, help in (
        ("--lf", "--last-failed", "only the cases that failed last; all where none did"),
        ("--hint", "the next exercise of the path, and a hint"),
        ("--watch", "grade the smoke cases again after each save; with --case, time that case too"),
    ):
        either.add_argument(*names, action="store_true", help=help)


def run(options: argparse.Namespace) -> int:
    """Grade and measure one folder; print its failures, or its places on the board."""
    options.only = shared.one_of(options.handle, options.only, "HANDLE")
    handle = options.only.partition("/")[0]
    exists = (paths.CONTRIBUTORS / handle).is_dir() and handle not in left_out()
    if options.hint and options.case:
        raise UserError("--hint takes the cases of the exercise: leave --case out")
    if options.hint and not (exists or handle in left_out()):
        raise UserError(f"the path begins with a kernel: nox -s new -- {handle} rotate_half")
    if not (exists and (options.watch or options.hint)):  # these await the folder's first solution
        solutions = shared.contributors(options)
        if refused := list(imports_of_ours(solutions[0].path.parent)):
            print("\n".join(refused))
            return 1
    if options.watch:
        require(["watchfiles"])
    with started(options) as grader:
        if options.hint:
            from common.commands import hint

            return hint.run(grader, options)
        if options.watch:
            from common.commands import watch

            return watch.run(grader, options)
        return int(not _check(solutions, grader, options))


@contextlib.contextmanager
def started(options: argparse.Namespace) -> Iterator[Grader]:
    """Start a fork server and a compiler; import torch here while the server imports it."""
    from common.grading.fork_server import ForkServer

    device, quiet = shared.device(options), not options.verbose
    with contextlib.closing(ForkServer(device, quiet=quiet)) as server:
        import_torch()
        from common.commands.grader import Grader
        from common.grading.compiling import Compiler

        with Compiler(device, quiet=quiet) as compiler:
            shown = options.verbose, options.picture, options.exitfirst
            yield Grader(server, compiler, options.memory, *shown)


class LastFailed:
    """The cases of a folder that failed in its latest checks, kept for `--last-failed`."""

    def __init__(self, handle: str) -> None:
        """Read the cases, each with the cases that its process must answer before it."""
        self._cache = DiskCache("failed", handle, str)
        found = self._cache.found.get("cases", ())
        self.failures: Failures = {(name, case): tuple(after) for name, case, *after in found}

    def save(self, smoke: TierReport, board: TierReport) -> None:
        """Keep the cases that failed in the reports, and earlier ones that were not run."""
        # the cases before a board's case are the board's, which are not asked again before it
        known = board.update(smoke.update(self.failures)) | dict.fromkeys(board.failures)
        cases = sorted([*key, *(after or ())] for key, after in known.items())
        self._cache.found = {"cases": cases}
        self._cache.save()


def _check(solutions: Sequence[Solution], grader: Grader, options: argparse.Namespace) -> bool:
    """Print the failures, or the folder's places; return whether there is no failure."""
    grader.compiler.prepare(solutions)
    from common.board import terminal
    from common.board.ranking import rank
    from common.commands.grader import Asked
    from common.measure import machine
    from common.records import runs

    smoke, board = grader.report("smoke"), grader.report("board")
    earlier = runs.read(paths.RESULTS / machine.results_folder(grader.device))
    names, handle = {solution.name for solution in solutions}, solutions[0].handle
    about = shared.about({row.solution for row in earlier.rows} | names)
    last_failed = LastFailed(handle)
    cases: set[Names] = set()
    if options.case:
        cases = grader.named(options.case, solutions)
    elif options.lf:
        cases = {key for key in last_failed.failures if key[0] in names}
    asked = Asked(solutions, cases, last_failed.failures if cases else {})
    if asked.before:
        print(f"First come {len(asked.before)} cases after which a case failed, in one process.")
    rows: list[Record] = []
    try:
        grader.report_smoke(asked, smoke)
        # the failure's cause ends the output, and the board's cases would repeat the failure
        answers = not smoke.failed and smoke.share
        if not smoke.failures and (answers or cases):
            rows = grader.measure_board(asked, board)
    finally:
        last_failed.save(smoke, board)
    if cases:
        board.end()
        return not (smoke.failures or board.failures)
    if not answers:  # in no case, which is no failure if the folder needs a GPU
        return not smoke.failed
    if not rows:
        print("No case of the board fits this device: nothing was measured.")
        return False
    if not earlier.rows:
        print("There is no board of this device yet: nox -s bench leaderboard makes one.")
    if grader.device == "cpu":
        print("Nothing is timed without a GPU: the board shows the coverage of each solution.")
    latest = {row.key: row for row in [*earlier.latest(), *rows] if row.solution in about}
    tracks = {(row.op, row.track) for row in rows}
    for track in rank(latest.values(), about, timed=grader.device != "cpu"):
        if (track.op, track.name) in tracks:
            terminal.show_track(track, terminal.console(), handle)
    board.end()
    for line in () if board.failed else conclusion(rows, smoke.share):
        say(line)
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
