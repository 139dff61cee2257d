"""`study check --watch`: grade one folder on the smoke cases after each save.

With `--case` and a GPU, also time a case of the board after each save.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import watchfiles

from common import paths
from common.board.ranking import limit, median
from common.commands import options as shared
from common.commands.answers import Names
from common.commands.grader import Asked, Grader
from common.errors import ServerEnded, UserError
from common.printable import say
from common.records.lines import Record
from common.solutions import Solution, imports_of_ours, is_hidden, python_files

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
        changed = Path(path)
        if changed.suffix not in SUFFIXES or not changed.is_relative_to(folder):
            return False
        return not is_hidden(changed, folder)

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
        self._times = Times()
        self._failed: Mapping[Names, tuple[str, ...] | None] = {}
        """The cases whose latest verdict is a failure, with `Verdict.after`."""

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

    # --- one round --------------------------------------------------------------------------------

    def round(self) -> None:
        """Grade the folder as it is, unless a file of it is away or does not parse."""
        self.passes = False
        try:
            solutions = shared.contributors(self._options)
            folder = solutions[0].path.parent
            if broken := [*_syntax_errors(folder), *imports_of_ours(folder)]:
                print("\n".join(broken), flush=True)
            else:
                self._grade(solutions)
        except UserError as error:
            print(f"study: {error}", flush=True)
        except FileNotFoundError as error:  # moved, or of another branch for a moment
            print(f"{error.filename or error} is away: waiting for it", flush=True)
        except Exception as error:
            if not (isinstance(error, ServerEnded) and self._grader.server.interrupted):
                self.end.set()
                raise

    def _grade(self, solutions: list[Solution]) -> None:
        """Grade the solutions; print the number of cases, the passing share and the next step."""
        report, before = self._grader.report("smoke", watched=True), self._failed
        asked, start = self._asked(solutions), time.monotonic()
        try:
            self._grader.report_smoke(asked, report)
        finally:
            self._failed = report.update(before)
        self.passes = not report.failed
        if asked.cases and not report.failures:
            self._time(asked)
        if asked.cases and not report.by_name:  # only the board has the case
            return
        took = f"{len(report.by_name)} smoke cases in {time.monotonic() - start:.1f} s"
        if mended := before.keys() - self._failed.keys():
            took += f", {len(mended)} of them mended"
        if report.failures:
            next_step = "The next save is graded from the failures on."
        elif not (share := report.share):
            next_step = "Nothing is wrong, but no case is answered yet."
        else:
            next_step = f"All that is answered is right, in {share}."
            next_step += f" Next: nox -s check -- {self._options.only}"
        say(f"{took}. {next_step}")

    def _asked(self, solutions: list[Solution]) -> Asked:
        """Return the case of `--case`, or all cases with the failures first.

        A failure that depends on earlier calls keeps its place behind them.
        """
        if case := self._options.case:
            return Asked(solutions, self._grader.named(case, solutions))
        first = {key for key, after in self._failed.items() if not after}
        after = {key: names for key, names in self._failed.items() if names is not None}
        return Asked(solutions, first=first, after=after)

    def _time(self, asked: Asked) -> None:
        """Measure the named case of the board, and print its times with the earlier times."""
        report = self._grader.report("board")
        if not (rows := self._grader.measure_board(asked, report)):
            return
        report.end()
        self.passes = self.passes and not report.failed
        if self._grader.device == "cpu":
            print("Nothing is timed without a GPU.", flush=True)
        elif lines := self._times.lines(rows):
            print("\n".join(lines), flush=True)


class Times:
    """The latest and the best times of each row, for a table of a round's rows.

    For example, after the third save of a kernel, in microseconds:

        8192x2x32x128-bfloat16        now      last      best     eager     limit
        alice/rotate_half forward    53.1  54.0 -2%      53.1     141.3      51.9 98%
    """

    def __init__(self) -> None:
        """Start without times."""
        self._earlier: dict[tuple[str, ...], list[float]] = {}

    def lines(self, rows: Iterable[Record]) -> list[str]:
        """Return the lines of a table of the timed rows.

        The limit is the slower of a copy of the case's bytes and dense products of its shapes in
        the same measurement, followed by the solution's share of the limit. A case that is ranked
        by host time has no limit.
        """
        table: list[tuple[str, ...]] = []
        for row in rows:
            if not row.gpu or not row.host:
                continue
            now, times = median(row), self._earlier.setdefault(row.key, [])
            before = f"{times[-1]:.1f} {now / times[-1] - 1:+.0%}" if times else "-"
            times.append(now)
            bound = limit(row)[0]
            of_limit = f"{bound:.1f} {bound / now:.0%}" if row.ranked_by == "gpu" else "-"
            cells = [f"{each:.1f}" for each in (now, min(times), median(row, "eager"))]
            if not table:
                table.append((f"{row.case}, us", "now", "last", "best", "eager", "limit"))
            name = f"{row.solution} {shared.TIMED[row.direction]}"
            table.append((name, cells[0], before, *cells[1:], of_limit))
        return [
            f"{name[:31]:32}{now:>8}{last:>13}{best:>8}{eager:>8}{bound:>11}"
            for name, now, last, best, eager, bound in table
        ]


def _syntax_errors(folder: Path) -> Iterator[str]:
    """Yield a line for each file of the folder that does not parse."""
    for path in sorted(python_files(folder)):
        try:
            ast.parse(path.read_bytes(), path.name)
        except SyntaxError as error:
            yield f"{folder.name}/{path.name}, line {error.lineno}: SyntaxError: {error.msg}"
        except (ValueError, OSError) as error:  # a null byte, or a deleted file
            yield f"{folder.name}/{path.name}: {error}"
