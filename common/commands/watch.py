"""`study check --watch`: grade one folder on the smoke cases after each save.

With `--case` and a GPU, also time a case of the board after each save; with `--hint`, tell what the
next exercise lacks.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import watchfiles

from common import paths
from common.board.ranking import DIRECTION, limit, median, share
from common.commands import hint
from common.commands import options as shared
from common.commands.answers import Failures
from common.commands.grader import Asked, Grader
from common.commands.report import TierReport, end
from common.errors import ServerEnded, UserError
from common.folders import imports_of_ours, is_hidden
from common.printable import say, translated
from common.records.lines import Record
from common.solutions import Solution

SUFFIXES = (".py", ".json")
"""The suffixes of a solution's files: the solution, its helpers and its configurations."""
DEBOUNCE = 50
"""Milliseconds without a further change after which a save is complete."""


def run(grader: Grader, options: argparse.Namespace) -> int:
    """Grade the folder `options.only` now and after each save, until Ctrl-C.

    Return 0 if the last round was complete and found no failure, otherwise 1.

    Raises:
        OSError: The folder cannot be watched.
    """
    watch = FolderWatch(grader, options)
    with contextlib.suppress(KeyboardInterrupt):
        watch.follow(saves(paths.CONTRIBUTORS / options.only.partition("/")[0], watch.end))
    return int(not watch.passes)


def saves(folder: Path, end: threading.Event) -> Iterator[set[Path]]:
    """Yield the set of changed, created or deleted files of the solution after each save.

    The parent folder is watched, so that the folder may be deleted and created again.
    """

    def is_relevant(_: watchfiles.Change, path: str) -> bool:
        changed, moved = Path(path), Path(path) == folder  # as a whole
        inside = changed.suffix in SUFFIXES and changed.is_relative_to(folder)
        return moved or (inside and not is_hidden(changed, folder))

    for changes in watchfiles.watch(
        folder.parent, watch_filter=is_relevant, step=DEBOUNCE, stop_event=end
    ):
        yield {Path(path) for _, path in changes}


class FolderWatch:
    """Grades one folder in rounds; a save interrupts a round and starts the next."""

    def __init__(self, grader: Grader, options: argparse.Namespace) -> None:
        """Take the processes of all rounds, and the options of `study check`."""
        self.passes = False
        """Whether the latest round was complete and found no failure."""
        self.end = threading.Event()
        """Set once a round has raised an error, which ends the watch."""
        self._grader, self._options = grader, options
        self._failed: Failures = {}
        """The cases whose latest verdict is a failure."""
        self._times: dict[tuple[str, ...], list[float]] = defaultdict(list)
        """The times of each row of the board, in microseconds, the latest last."""
        self._exercise = ""
        """The title of the exercise that was printed last, with `--hint`."""

    def follow(self, saves: Iterable[set[Path]]) -> None:
        """Grade the folder now and after each save, until the saves end.

        The rounds run in a thread, so that Ctrl-C interrupts no import.

        Raises:
            Exception: The exception that ended a round or the saves.
        """
        folder = self._options.only.partition("/")[0]
        print(f"Watching contributors/{folder}: each save is graded; Ctrl-C ends.", flush=True)
        with ThreadPoolExecutor(1) as thread:
            current = thread.submit(self.round)
            try:
                for save in saves:
                    self._grader.interrupt()
                    current.result()
                    self._grader.resume()
                    names = ", ".join(sorted({path.name for path in save}))
                    print(f"\n{time.strftime('%H:%M:%S')} saved: {names}", flush=True)
                    current = thread.submit(self.round)
            finally:
                self._grader.interrupt()
            current.result()

    def round(self) -> None:
        """Grade the folder as it is, unless a file of it is away or imports this repository."""
        self.passes = False
        try:
            solutions = shared.contributors(self._options)
            solutions.sort(key=lambda each: -each.path.stat().st_mtime)  # the saved one comes first
            folder = solutions[0].path.parent
            if refused := [*imports_of_ours(folder)]:
                print("\n".join(refused), flush=True)
            else:
                self._grade(solutions)
        except UserError as error:
            print(f"study: {error}; waiting for a save", flush=True)
        except FileNotFoundError as error:  # moved, or of another branch for a moment
            print(f"{error.filename or error} is away: waiting for it", flush=True)
        except Exception as error:
            if not (isinstance(error, ServerEnded) and self._grader.server.interrupted):
                self.end.set()
                raise

    def _grade(self, solutions: list[Solution]) -> None:
        """Grade the solutions; print the number of cases, the passing share and the next step."""
        case, before, start = self._options.case, self._failed, time.monotonic()
        asked = self._grader.named(case, solutions) if case else Asked(solutions, failed=before)
        cases = asked.cases
        report = TierReport(self._options.verbose, watched=True)
        try:
            end(self._grader.report_smoke(asked, report))
        finally:
            self._failed = report.update(before)
        self.passes = not report.failed
        if cases and not report.failures:
            self._measure(asked)
        if cases and not report.by_name:  # only the board has the case
            return
        took = f"{len(report.by_name)} smoke cases in {time.monotonic() - start:.1f} s"
        if mended := before.keys() - self._failed.keys():
            took += f", {len(mended)} of them mended"
        if report.failures:
            next_step = "The next save is graded from the failures on."
        elif not report.passes:
            next_step = "Nothing is wrong, but no case is answered yet."
        else:
            next_step = f"Next: nox -s check -- {self._options.only}"
        say(translated(f"{took}. {next_step}"))
        if self._options.hint:
            self._exercise = hint.run(self._grader, self._options, self._exercise)

    def _measure(self, asked: Asked) -> None:
        """Measure the named case of the board, and print its times with the earlier times."""
        report = TierReport(self._options.verbose)
        if not (rows := self._grader.measure_board(asked, report)):
            return
        end(report.summaries("board", self._grader.device))
        self.passes = self.passes and not report.failed
        if self._grader.device == "cpu":
            print("Nothing is timed without a GPU.", flush=True)
        for row in (row for row in rows if row.gpu):
            say(described(row, self._times[row.key]))


def described(row: Record, times: list[float]) -> str:
    """Return a row's time beside those of earlier saves, and add it to them.

    For example: `alice/rope forward: 53.1 us, -2% since 54.0, best 53.1; eager 141.3; 98% of copy`.
    A case that is ranked by host time has no limit.
    """
    now, since = median(row), ""
    if times:
        since = f", {now / times[-1] - 1:+.0%} since {times[-1]:.1f}, best {min(now, *times):.1f}"
    times.append(now)
    of_limit = f"; {share(row):.0%} of {limit(row)[1]}" if row.ranked_by == "gpu" else ""
    name = f"{row.solution} {DIRECTION[row.direction]}"
    return f"{name}: {now:.1f} us{since}; eager {median(row, 'eager'):.1f}{of_limit}"
