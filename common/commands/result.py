"""The result of a check as data, and its last lines: the folder's places on the board."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field

from common import paths
from common.board import terminal
from common.board.devices import about_solutions
from common.board.ranking import rank, unranked
from common.commands.answers import Answers, Names
from common.commands.report import TierReport
from common.measure import machine
from common.printable import say
from common.records import runs
from common.records.lines import Record


@dataclass
class Result:
    """The findings of one check."""

    handle: str
    device: str
    cases: Set[Names]
    """The cases of `--case` or `--last-failed`; empty for all."""
    smoke: Answers
    board: TierReport
    named_ops: set[str] = field(default_factory=set)
    """The ops of a case of `--case` that is no smoke case: it is measured beside the peers."""
    rows: list[Record] = field(default_factory=list)
    """The rows of the board's cases; none after a failed smoke case."""

    @property
    def answers(self) -> bool:
        """Whether the smoke cases have passes and no failure."""
        return not self.smoke.failed and bool(self.smoke.share)

    @property
    def failed(self) -> bool:
        """Whether the exit code is 1."""
        if self.cases:
            return bool(self.smoke.failures or self.board.failures)
        if not self.answers:  # in no case, which is no failure if the folder needs a GPU
            return self.smoke.failed
        return not self.rows or self.board.failed


def show(result: Result) -> None:
    """Print the board's answers, the folder's places, and the next step."""
    if result.cases:
        result.board.end()
        return
    if not result.answers:
        return
    if not result.rows:
        print("No case of the board fits this device: nothing was measured.")
        return
    earlier = runs.read(paths.RESULTS / machine.results_folder(result.device))
    if not earlier.rows:
        print("There is no board of this device yet: nox -s bench leaderboard makes one.")
    if result.device == "cpu":
        print("Nothing is timed without a GPU: the board shows the coverage of each solution.")
    about = about_solutions({row.solution for row in (*earlier.rows, *result.rows)})
    latest = {row.key: row for row in [*earlier.latest(), *result.rows] if row.solution in about}
    tracks = {(row.op, row.track) for row in result.rows}
    for track in rank(latest.values(), about, timed=result.device != "cpu"):
        if (track.op, track.name) in tracks:
            terminal.show_track(track, terminal.console(), result.handle)
    result.board.end()
    for line in () if result.board.failed else conclusion(result.rows, result.smoke.share):
        say(line)


def conclusion(rows: Sequence[Record], share: str) -> Iterator[str]:
    """Yield what the folder lacks for a place in a track, and the next step.

    Args:
        rows: The folder's rows, without a failure.
        share: The share of the smoke cases that are answered.
    """
    tracks = rank(rows)
    yield from unranked(tracks)
    handle = rows[0].solution.partition("/")[0]
    if any(not entry.missing for track in tracks for entry in track.entries):
        next_step = f"Next: nox -s bench leaderboard -- --only {handle}"
        yield f"All that is answered is right, in {share}. {next_step}"
    else:
        yield f"No track ranks {handle}, although all that is answered is right, in {share}"
