"""`study check --watch`: one folder, graded on the smoke cases again after each save."""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from common import paths
from common.commands import options as shared
from common.commands import smoke
from common.commands.report import TierReport
from common.errors import ServerEnded, UserError
from common.solutions import Solution, is_hidden, python_files
from common.verdicts import FINE

if TYPE_CHECKING:
    from common.grading.compiling import Compiler
    from common.grading.fork_server import ForkServer
    from common.grading.sweep import Graded

SUFFIXES = (".py", ".json")
"""The files that a solution consists of: itself, its helpers and its configurations."""
STEP = 50
"""Milliseconds without a further save after which a save is complete."""
Names = tuple[str, str]
"""Of a solution and of a case."""


class Saved(Exception):
    """A file was saved, or Ctrl-C came, while the folder was graded: that round is out of date."""


def run(options: argparse.Namespace) -> int:
    """Grade the folder named by `options.only` now and after each save, until Ctrl-C.

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
        watch = Watch(server, compiler, lambda: shared.contributors(options), options)
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
    ) -> None:
        """Grade nothing yet.

        Args:
            server: The fork server, which outlives all rounds.
            compiler: The compiler, which does too.
            select: Returns the solutions that the folder has at present.
            options: Those of `study check`.
        """
        self.passes = False
        """Whether the latest round was whole and found no failure."""
        self._server, self._compiler, self._select = server, compiler, select
        self._options = options
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
        memory = self._options.memory
        with (
            closing(smoke.grade(chosen, self._server, memory, before)) as cases,
            closing(smoke.compiled(cases, self._compiler)) as found,
        ):
            smoke.take_all(self._taken(found, asked), report, self._server, memory)
        self.passes = not report.failed
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
        print(f"{took}. {after}", flush=True)

    def _taken(self, cases: Iterable[Graded], asked: set[Names]) -> Iterator[Graded]:
        """Yield the cases of a round, and end it where a file is saved meanwhile.

        The round's first answer is shown if it is a pass.
        """
        for graded in cases:
            if not self._saves.empty():
                raise Saved
            key = graded.solution.name, graded.case.name
            verdicts = dict.fromkeys(each.verdict for each in graded.verdicts.values())
            if not FINE.issuperset(verdicts):
                self._failed.add(key)
            else:
                self._failed.discard(key)
                if not asked:
                    print(f"{' '.join(key)}: {' and '.join(verdicts)}", flush=True)
            asked.add(key)
            yield graded


def _syntax_errors(folder: Path) -> Iterator[str]:
    """Yield a line for each file of the folder that does not parse."""
    for path in sorted(python_files(folder)):
        try:
            ast.parse(path.read_bytes(), path.name)
        except SyntaxError as error:
            yield f"{folder.name}/{path.name}, line {error.lineno}: SyntaxError: {error.msg}"
        except (ValueError, OSError) as error:  # a null byte, or a file that was just deleted
            yield f"{folder.name}/{path.name}: {error}"
