"""`study check --watch`: grade one folder on the smoke cases after each save.

With `--case` and a GPU, also time a case of the board after each save.
"""

from __future__ import annotations

import argparse
import ast
import queue
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from common import paths
from common.commands import options as shared
from common.commands.grader import Asked, Grader, Names, started
from common.commands.report import TierReport
from common.errors import ServerEnded, UserError
from common.importing import require
from common.printable import wrapped
from common.solutions import Solution, imports_of_ours, is_hidden, python_files
from common.verdicts import FINE

if TYPE_CHECKING:
    from common.grading.sweep import Graded
    from common.records.lines import Record

SUFFIXES = (".py", ".json")
"""The suffixes of a solution's files: the solution, its helpers and its configurations."""
DEBOUNCE = 50
"""Milliseconds without a further change after which a save is complete."""


class Saved(Exception):
    """A save or Ctrl-C during a round: the round's results are outdated."""


def run(options: argparse.Namespace) -> int:
    """Grade the folder named by `options.only` now and after each save, until Ctrl-C.

    Args:
        options: The options of `study check`.

    Returns:
        0 if the last round was complete and found no failure, otherwise 1.

    Raises:
        UserError: The folder does not exist.
        ModuleNotFoundError: watchfiles is missing.
        OSError: The folder cannot be watched.
    """
    folder = paths.CONTRIBUTORS / options.only.partition("/")[0]
    if not folder.is_dir():
        shared.contributors(options)  # raises the error with the existing folders
    require(["watchfiles"])
    end = threading.Event()
    with started(options) as grader:
        grader.earlier_rows()  # checks the device
        watch = Watch(grader, options)
        # instead of KeyboardInterrupt, which might interrupt an import
        previous = signal.signal(signal.SIGINT, lambda *_: watch.end())
        try:
            watch.follow(saves(folder, end))
        finally:
            signal.signal(signal.SIGINT, previous)
            end.set()
    return int(not watch.passes)


def saves(folder: Path, end: threading.Event) -> Iterator[set[Path]]:
    """Yield the set of changed, created or deleted files of the solution after each save.

    The parent folder is watched, so that the folder may be deleted and created again.
    """
    import watchfiles

    def is_relevant(_: watchfiles.Change, path: str) -> bool:
        changed = Path(path)
        if changed.suffix not in SUFFIXES or not changed.is_relative_to(folder):
            return False
        return not is_hidden(changed, folder)

    watched = watchfiles.watch(
        folder.parent,
        watch_filter=is_relevant,
        step=DEBOUNCE,
        stop_event=end,
        raise_interrupt=False,
    )
    for changes in watched:
        yield {Path(path) for _, path in changes}


class Watch:
    """Grades one folder in rounds; a save interrupts a round and starts the next."""

    def __init__(self, grader: Grader, options: argparse.Namespace) -> None:
        """Store the parts of a round; `follow` starts the first round.

        Args:
            grader: The processes of all rounds.
            options: The options of `study check`.
        """
        self.passes = False
        """Whether the latest round was complete and found no failure."""
        self._grader, self._options = grader, options
        self._times = Times()
        self._failed: dict[Names, tuple[str, ...] | None] = {}
        """The cases whose latest verdict is a failure, with `Verdict.after`."""
        self._lock = threading.Lock()
        """Held while a save is handled, so that its interrupt precedes the next round."""
        self._saves: queue.SimpleQueue[set[Path] | Exception] = queue.SimpleQueue()
        """The files of each save, or the exception that ended the iterator of saves."""
        self._ended = False

    def follow(self, saves: Iterable[set[Path]]) -> None:
        """Grade the folder now and after each save, until `end`.

        Raises:
            Exception: The exception that ended the iterator of saves.
        """
        threading.Thread(target=self._listen, args=[saves], daemon=True).start()
        folder = self._options.only.partition("/")[0]
        print(f"Watching contributors/{folder}: each save is graded; Ctrl-C ends.", flush=True)
        while True:
            self.round()
            pending = [self._saves.get()]
            with self._lock:
                while not self._saves.empty():
                    pending.append(self._saves.get())
                if self._ended:
                    return
                self._grader.server.resume()
                self._grader.compiler.renew()
            names = set()
            for save in pending:
                if isinstance(save, Exception):
                    raise save
                names |= {path.name for path in save}
            print(f"\n{time.strftime('%H:%M:%S')} saved: {', '.join(sorted(names))}", flush=True)

    def end(self) -> None:
        """End the current round and `follow`; safe to call from a signal handler."""
        self._ended = True
        self._stop(set())

    def _stop(self, save: set[Path] | Exception) -> None:
        """Queue a save and stop the current round."""
        self._saves.put(save)
        self._grader.server.interrupt()
        self._grader.compiler.interrupt()

    def _listen(self, saves: Iterable[set[Path]]) -> None:
        """Stop the current round at each save."""
        try:
            for save in saves:
                with self._lock:
                    self._stop(save)
        except Exception as error:  # such as too many watched folders; `follow` raises the error
            self._saves.put(error)

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
        except Saved:
            pass
        except ServerEnded:
            if self._saves.empty():
                raise

    def _grade(self, solutions: list[Solution]) -> None:
        """Grade the solutions; print the number of cases, the passing share and the next step."""
        report, before, start = self._report("smoke"), self._failed, time.monotonic()
        asked = self._asked(solutions)
        try:
            self._grader.report_smoke(asked, report, lambda graded: self._hear(graded, report))
        finally:
            self._failed = report.update(before)
        self.passes = not report.failed
        if asked.cases and not report.failures:
            self._time(asked)
        if asked.cases and not report.asked:  # only the board has the case
            return
        took = f"{len(report.asked)} smoke cases in {time.monotonic() - start:.1f} s"
        if mended := before.keys() - self._failed.keys():
            took += f", {len(mended)} of them mended"
        if report.failures:
            next_step = "The next save is graded from the failures on."
        elif not (share := report.share):
            next_step = "Nothing is wrong, but no case is answered yet."
        else:
            next_step = f"All that is answered is right, in {share}."
            next_step += f" Next: nox -s check -- {self._options.only}"
        print(wrapped(f"{took}. {next_step}"), flush=True)

    def _asked(self, solutions: list[Solution]) -> Asked:
        """Return the case of `--case`, or all cases with the failures first.

        A failure that depends on earlier calls keeps its place behind them.
        """
        stop = self._options.exitfirst
        if case := self._options.case:
            return Asked(solutions, self._grader.named(case, solutions), stop=stop)
        first = {key for key, after in self._failed.items() if not after}
        after = {key: names for key, names in self._failed.items() if names is not None}
        return Asked(solutions, first=first, after=after, stop=stop)

    def _time(self, asked: Asked) -> None:
        """Measure the named case of the board, and print its times with the earlier times."""
        report = self._report("board")
        rows = self._grader.measure_board(asked, report)
        if not self._saves.empty():
            raise Saved
        if not rows:
            return
        report.end()
        self.passes = self.passes and not report.failed
        if self._grader.device == "cpu":
            print("Nothing is timed without a GPU.", flush=True)
        elif lines := self._times.lines(rows):
            print("\n".join(lines), flush=True)

    def _hear(self, graded: Graded, report: TierReport) -> None:
        """Print the round's first answer if it is a pass.

        Raises:
            Saved: A file was saved, so that the answer is outdated.
        """
        if not self._saves.empty():
            raise Saved
        verdicts = dict.fromkeys(verdict.verdict for verdict in graded.verdicts.values())
        if not report.asked and FINE.issuperset(verdicts):
            name = f"{graded.solution.name} {graded.case.name}"
            print(f"{name}: {' and '.join(verdicts)}", flush=True)

    def _report(self, tier: str) -> TierReport:
        return TierReport(tier, self._options.verbose, self._options.picture)


class Times:
    """The latest and the best times of each row, for a table of a round's rows.

    For example, after the third save of a kernel, in microseconds:

        8192x2x32x128-bfloat16        now      last      best     eager     limit
        alice/rotate_half forward    53.1  54.0 -2%      53.1     141.3      51.9 98%
    """

    HEADER = "{:32}{:>8}{:>13}{:>8}{:>8}{:>11}"
    """The format of a line of 80 columns."""

    def __init__(self) -> None:
        """Start without times."""
        self._last: dict[tuple[str, ...], float] = {}
        self._best: dict[tuple[str, ...], float] = {}

    def lines(self, rows: Iterable[Record]) -> list[str]:
        """Return the lines of a table of the timed rows.

        The limit is the slower of a copy of the case's bytes and dense products of its shapes in
        the same measurement, followed by the solution's share of the limit. A case that is ranked
        by host time has no limit.
        """
        from common.board.ranking import limit, median

        lines: list[str] = []
        for row in rows:
            if not row.gpu or not row.host:
                continue
            if not lines:
                head = "now", "last", "best", "eager", "limit"
                lines.append(self.HEADER.format(f"{row.case}, us"[:31], *head))
            now, key = median(row), row.key
            last, best = self._last.get(key), min(now, self._best.get(key, now))
            self._last[key], self._best[key] = now, best
            before = f"{last:.1f} {now / last - 1:+.0%}" if last else "-"
            bound = limit(row)[0]
            of_limit = f"{bound:.1f} {bound / now:.0%}" if row.ranked_by == "gpu" else "-"
            lines.append(
                self.HEADER.format(
                    f"{row.solution} {shared.TIMED[row.direction]}"[:31], f"{now:.1f}", before,
                    f"{best:.1f}", f"{median(row, 'eager'):.1f}", of_limit,
                )
            )  # fmt: skip
        return lines


def _syntax_errors(folder: Path) -> Iterator[str]:
    """Yield a line for each file of the folder that does not parse."""
    for path in sorted(python_files(folder)):
        try:
            ast.parse(path.read_bytes(), path.name)
        except SyntaxError as error:
            yield f"{folder.name}/{path.name}, line {error.lineno}: SyntaxError: {error.msg}"
        except (ValueError, OSError) as error:  # a null byte, or a deleted file
            yield f"{folder.name}/{path.name}: {error}"
