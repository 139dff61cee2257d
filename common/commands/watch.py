"""`study check --watch`: one folder, graded on the smoke cases again after each save.

With `--case` and a GPU, a case of the board is timed after each save as well.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import importlib.util
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from common import paths
from common.commands import options as shared
from common.commands import smoke
from common.commands.report import TierReport
from common.commands.smoke import Names
from common.errors import ServerEnded, UserError
from common.printable import wrapped
from common.solutions import Solution, is_hidden, python_files
from common.verdicts import FINE

if TYPE_CHECKING:
    from common.grading.compiling import Compiler
    from common.grading.fork_server import ForkServer
    from common.grading.sweep import Graded
    from common.records.lines import Record
    from common.spec import Tier

    Measure = Callable[
        [Sequence[Solution], ForkServer, Compiler, TierReport, int | None, set[Names]],
        list[Record],
    ]
    """Return the rows of the board's cases of these names; see `check.measure_board`."""

SUFFIXES = (".py", ".json")
"""The files that a solution consists of: itself, its helpers and its configurations."""
STEP = 50
"""Milliseconds without a further save after which a save is complete."""


class Saved(Exception):
    """A file was saved, or Ctrl-C came, while the folder was graded: that round is out of date."""


def run(options: argparse.Namespace, measure: Measure) -> int:
    """Grade the folder named by `options.only` now and after each save, until Ctrl-C.

    Args:
        options: Those of `study check`.
        measure: Measures the case that `options.case` names, if the board has it.

    Returns:
        0 if the last round was whole and found no failure, otherwise 1.

    Raises:
        UserError: There is no such folder.
        ModuleNotFoundError: watchfiles is missing.
        OSError: The folder cannot be watched.
    """
    folder = paths.CONTRIBUTORS / options.only.partition("/")[0]
    if not folder.is_dir():
        shared.contributors(options)  # says what there is
    if not importlib.util.find_spec("watchfiles"):
        raise ModuleNotFoundError(name="watchfiles")
    end = threading.Event()
    with smoke.started(shared.device(options), options.verbose) as (server, compiler):
        smoke.earlier_rows(server)  # checks the device
        select = functools.partial(shared.contributors, options)
        watch = Watch(server, compiler, select, options, measure)
        # in place of KeyboardInterrupt, which may strike amid an import
        before = signal.signal(signal.SIGINT, lambda *_: watch.end())
        try:
            watch.follow(saves(folder, end))
        finally:
            signal.signal(signal.SIGINT, before)
            end.set()
    return int(not watch.passes)


def saves(folder: Path, end: threading.Event) -> Iterator[set[Path]]:
    """Yield the solution's files that were saved, created or deleted, each time some were.

    The folder's parent is watched, so that the folder may be deleted and made again.
    """
    import watchfiles

    def concerns(_: watchfiles.Change, path: str) -> bool:
        changed = Path(path)
        if changed.suffix not in SUFFIXES or not changed.is_relative_to(folder):
            return False
        return not is_hidden(changed, folder)

    watched = watchfiles.watch(
        folder.parent, watch_filter=concerns, step=STEP, stop_event=end, raise_interrupt=False
    )
    for changes in watched:
        yield {Path(path) for _, path in changes}


class Watch:
    """The rounds of one folder: each grades it as it is, until it is done or a file is saved."""

    def __init__(
        self,
        server: ForkServer,
        compiler: Compiler,
        select: Callable[[], list[Solution]],
        options: argparse.Namespace,
        measure: Measure,
    ) -> None:
        """Grade nothing yet.

        Args:
            server: The fork server, which outlives all rounds.
            compiler: The compiler, which does too.
            select: Returns the solutions that the folder has at present.
            options: Those of `study check`.
            measure: Measures the board's case that `options.case` names.
        """
        self.passes = False
        """Whether the latest round was whole and found no failure."""
        self._server, self._compiler, self._select = server, compiler, select
        self._options, self._measure = options, measure
        self._times = Times()
        self._failed: set[Names] = set()
        """The cases that failed when they were last asked."""
        self._lock = threading.Lock()
        """Held while a save is taken in, so that its interrupt comes before the next round."""
        self._saves: queue.SimpleQueue[set[Path] | Exception] = queue.SimpleQueue()
        """The files of each save, and the reason for which no further one is seen."""
        self._ended = False

    def follow(self, saves: Iterable[set[Path]]) -> None:
        """Grade the folder, and again after each save, until `end`.

        Raises:
            Exception: What ended the iterator of saves.
        """
        threading.Thread(target=self._listen, args=[saves], daemon=True).start()
        folder = self._options.only.partition("/")[0]
        print(f"Watching contributors/{folder}: each save is graded; Ctrl-C ends.", flush=True)
        while True:
            self._round()
            several = [self._saves.get()]
            with self._lock:
                while not self._saves.empty():
                    several.append(self._saves.get())
                if self._ended:
                    return
                self._server.resume()
                self._compiler.renew()
            names = set()
            for each in several:
                if isinstance(each, Exception):
                    raise each
                names |= {path.name for path in each}
            print(f"\n{time.strftime('%H:%M:%S')} saved: {', '.join(sorted(names))}", flush=True)

    def end(self) -> None:
        """End the round under way, and follow no more; a signal handler may call it."""
        self._ended = True
        self._stop(set())

    def _stop(self, news: set[Path] | Exception) -> None:
        """Stop the round under way, for this reason."""
        self._saves.put(news)
        self._server.interrupt()
        self._compiler.interrupt()

    def _listen(self, saves: Iterable[set[Path]]) -> None:
        """Stop the round under way at each save."""
        try:
            for several in saves:
                with self._lock:
                    self._stop(several)
        except Exception as error:  # such as too many folders watched; `follow` raises it
            self._saves.put(error)

    # --- one round --------------------------------------------------------------------------------

    def _round(self) -> None:
        self.passes = False
        try:
            chosen = self._select()
        except UserError as error:
            print(f"study: {error}", flush=True)
            return
        if broken := list(_syntax_errors(chosen[0].path.parent)):
            print("\n".join(broken), flush=True)
            return
        with contextlib.suppress(Saved):
            try:
                self._grade(chosen)
            except ServerEnded:
                if self._saves.empty():
                    raise

    def _grade(self, chosen: list[Solution]) -> None:
        """Grade the solutions; say how many cases were asked, what passes, and what to do next."""
        report = TierReport("smoke", self._options.verbose, self._options.picture)
        start, asked, before = time.monotonic(), set[Names](), frozenset(self._failed)
        memory, case = self._options.memory, self._options.case
        tiers: tuple[Tier, ...] = ("smoke", "board")
        only = smoke.named(case, chosen, self._server.device, tiers) if case else set[Names]()
        with (
            closing(smoke.grade_smoke_cases(chosen, self._server, memory, before, only)) as cases,
            closing(smoke.compiled(cases, self._compiler)) as found,
        ):
            smoke.take_all(
                self._taken(found, asked), report, self._server, memory, self._options.exitfirst
            )
        self.passes = not report.failed
        if only and not report.failures:
            self._time(chosen, only)
        if only and not asked:  # a case of the board alone
            return
        took = f"{len(asked)} smoke cases in {time.monotonic() - start:.1f} s"
        if mended := before & asked - self._failed:
            took += f", {len(mended)} of them mended"
        if self._failed & asked:
            after = "The next save is graded from the failures on."
        elif not (share := report.share):
            after = "Nothing is wrong, but no case is answered yet."
        else:
            after = f"All that is answered is right, in {share}."
            after += f" Next: nox -s check -- {self._options.only}"
        print(wrapped(f"{took}. {after}"), flush=True)

    def _time(self, chosen: list[Solution], only: set[Names]) -> None:
        """Measure the board's case that is named, and show its times beside the earlier ones."""
        report = TierReport("board", self._options.verbose, self._options.picture)
        memory = self._options.memory
        rows = self._measure(chosen, self._server, self._compiler, report, memory, only)
        if not self._saves.empty():
            raise Saved
        if not rows:
            return
        report.end()
        self.passes = self.passes and not report.failed
        if self._server.device == "cpu":
            print("Nothing is timed without a GPU.", flush=True)
        elif lines := self._times.lines(rows):
            print("\n".join(lines), flush=True)

    def _taken(self, cases: Iterable[Graded], asked: set[Names]) -> Iterator[Graded]:
        """Yield the cases of a round, and end it where a file is saved meanwhile.

        The round's first answer is shown if it is a pass.
        """
        for graded in cases:
            if not self._saves.empty():
                raise Saved
            key = graded.solution.name, graded.case.name
            verdicts = dict.fromkeys(verdict.verdict for verdict in graded.verdicts.values())
            if not FINE.issuperset(verdicts):
                self._failed.add(key)
            else:
                self._failed.discard(key)
                if not asked:
                    print(f"{' '.join(key)}: {' and '.join(verdicts)}", flush=True)
            asked.add(key)
            yield graded


class Times:
    """The latest and the best times of each row, for a table that grows by a round's rows.

    For example, after the third save of a kernel, in microseconds:

        8192x2x32x128-bfloat16        now      last      best     eager     limit
        alice/rotate_half forward    53.1  54.0 -2%      53.1     141.3      51.9 98%
    """

    HEADER = "{:32}{:>8}{:>13}{:>8}{:>8}{:>11}"
    """A line of 80 columns."""

    def __init__(self) -> None:
        """Know no times yet."""
        self._last: dict[tuple[str, ...], float] = {}
        self._best: dict[tuple[str, ...], float] = {}

    def lines(self, rows: Iterable[Record]) -> list[str]:
        """Return the table of the rows that were timed; none of others.

        The limit is the slower of a copy of the case's bytes and dense products of its shapes, as
        measured beside it, with the share of it that the solution reaches. A case that is ranked by
        the host's time has none.
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
        except (ValueError, OSError) as error:  # a null byte, or a file that was just deleted
            yield f"{folder.name}/{path.name}: {error}"
