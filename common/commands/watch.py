"""`study check --watch`: one folder, graded on the smoke cases again after each save."""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
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
PERIOD = 0.2
"""Seconds between two looks at whether Ctrl-C has come."""
Saves = Iterable[set[Path]]


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
    device = shared.device(options)
    end = threading.Event()
    with (
        closing(smoke.fork_server(device, options.verbose)) as server,
        smoke.compiler(device, options.verbose) as compiler,
    ):
        smoke.earlier_rows(server)  # checks the device
        watch = Watch(server, compiler, lambda: shared.contributors(options), options)
        with _on_interrupt(watch.end):
            watch.follow(saves(folder, end))
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


@contextlib.contextmanager
def _on_interrupt(act: Callable[[], None]) -> Iterator[None]:
    """Act on Ctrl-C in place of KeyboardInterrupt, which may strike amid an import."""
    before = signal.signal(signal.SIGINT, lambda *_: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Watch:
    """The rounds of one folder: each grades it as it is, until it is done or a file is saved."""

    def __init__(
        self,
        server: ForkServer,
        compiler: Compiler,
        select: Callable[[], list[Solution]],
        options: argparse.Namespace,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Grade nothing yet.

        Args:
            server: The fork server, which outlives all rounds.
            compiler: The compiler, which does too.
            select: Returns the solutions that the folder has at present.
            options: Those of `study check`.
            now: A clock in seconds.
        """
        self.passes = False
        """Whether the latest round was whole and found no failure."""
        self._server, self._compiler, self._select = server, compiler, select
        self._options, self._now = options, now
        self._failed: set[tuple[str, str]] = set()
        """The solutions and cases that failed when they were last asked."""
        self._changed = threading.Condition()
        self._saves: list[set[Path]] = []
        self._ended = self._no_more = False
        self._error: Exception | None = None
        """The reason for which no save is seen any more."""

    def follow(self, saves: Saves) -> None:
        """Grade the folder, and again after each save, until there are no more saves to come.

        Raises:
            Exception: What ended the iterator of saves.
        """
        threading.Thread(target=self._listen, args=[saves], daemon=True).start()
        folder = self._options.only.partition("/")[0]
        print(f"Watching contributors/{folder}: each save is graded; Ctrl-C ends.", flush=True)
        while True:
            self._round()
            with self._changed:
                while not (self._saves or self._ended or self._no_more):
                    self._changed.wait(PERIOD)
                if self._error:
                    raise self._error
                if self._ended or not self._saves:
                    return
                names = sorted({path.name for several in self._saves for path in several})
                self._saves.clear()
                self._server.resume()
                self._compiler.renew()
            print(f"\n{time.strftime('%H:%M:%S')} saved: {', '.join(names)}", flush=True)

    def end(self) -> None:
        """End the round under way, and follow no more; a signal handler may call it."""
        self._ended = True
        self._interrupt()

    def _interrupt(self) -> None:
        self._server.interrupt()
        self._compiler.interrupt()

    def _listen(self, saves: Saves) -> None:
        """Stop the round under way at each save."""
        try:
            for several in saves:
                with self._changed:
                    self._saves.append(several)
                    self._interrupt()
                    self._changed.notify()
        except Exception as error:  # such as too many folders watched; `follow` raises it
            self._error = error
        self._no_more = True

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
                if not (self._saves or self._ended):
                    raise

    def _grade(self, chosen: list[Solution]) -> None:
        report = TierReport("smoke", self._options.verbose, self._options.picture)
        round = _Round(self._now())
        first = frozenset(self._failed)
        memory = self._options.memory
        with (
            closing(smoke.grade(chosen, self._server, memory, first)) as cases,
            closing(smoke.compiled(cases, self._compiler)) as found,
        ):
            smoke.take_all(self._taken(found, round), report, self._server, memory)
        self.passes = not report.failed
        print(round.summary(self._now(), self._options.only, report.share), flush=True)

    def _taken(self, cases: Iterable[Graded], round: _Round) -> Iterator[Graded]:
        """Yield the cases of a round, and end it where a file is saved meanwhile."""
        for graded in cases:
            with self._changed:
                if self._saves or self._ended:
                    raise Saved
                self._take(graded, round)
            yield graded

    def _take(self, graded: Graded, round: _Round) -> None:
        """Remember whether the case failed, and show the round's first answer if it is a pass."""
        key = graded.solution.name, graded.case.name
        verdicts = [each.verdict for each in graded.verdicts.values()]
        if not FINE.issuperset(verdicts):
            self._failed.add(key)
            round.failed = True
            round.mended.discard(key)
        else:
            round.mended |= {key} & self._failed
            self._failed.discard(key)
            if not round.cases:
                print(f"{' '.join(key)}: {' and '.join(dict.fromkeys(verdicts))}", flush=True)
        round.cases.add(key)


@dataclass
class _Round:
    """Counts of the round under way."""

    start: float
    cases: set[tuple[str, str]] = field(default_factory=set)
    failed: bool = False
    """Whether any direction of any case failed."""
    mended: set[tuple[str, str]] = field(default_factory=set)
    """The cases that failed when they were last asked and do no longer."""

    def summary(self, now: float, folder: str, share: str) -> str:
        """Return the line at the round's end, with the share that passes and what to do next."""
        took = f"{len(self.cases)} smoke cases in {now - self.start:.1f} s"
        if self.mended:
            took += f", {len(self.mended)} of them mended"
        if self.failed:
            return f"{took}. The next save is graded from the failures on."
        if not share:
            return f"{took}. Nothing is wrong, but no case is answered yet."
        right = f"All that is answered is right, in {share}"
        return f"{took}. {right}. Next: nox -s check -- {folder}"


def _syntax_errors(folder: Path) -> Iterator[str]:
    """Yield a line for each file of the folder that does not parse."""
    for path in sorted(python_files(folder)):
        try:
            ast.parse(path.read_bytes(), path.name)
        except SyntaxError as error:
            yield f"{folder.name}/{path.name}, line {error.lineno}: SyntaxError: {error.msg}"
        except (ValueError, OSError) as error:  # a null byte, or a file that was just deleted
            yield f"{folder.name}/{path.name}: {error}"
