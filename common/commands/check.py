"""One folder by itself: graded on the smoke cases, measured on the board's, and given its place."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from common import paths
from common.board import terminal
from common.board.ranking import rank
from common.board.table import About
from common.grading.sweep import Sweep, tier_cases
from common.measure import machine
from common.measure import rows as measured_rows
from common.records import runs
from common.records.runs import Record, Results
from common.solutions import Solution
from common.verdicts import FINE, Verdict

SHOWN = 3
"""Cases told of each verdict; that a file does not import is told once."""


def check(
    chosen: Sequence[Solution], device: str, verbose: bool, about: Mapping[str, About]
) -> bool:
    """Print what is wrong as it is found, and where the folder would stand; was all right?"""
    earlier = runs.read(paths.RESULTS / machine.results_file(device))
    smoke, board = Report("smoke", verbose), Report("board", verbose)
    rows: list[Record] = []
    with Sweep(device, quiet=not verbose) as sweep:
        for op, cases in tier_cases(chosen, "smoke", device):
            for graded in sweep.grade(op, cases, chosen):
                smoke.add(list(graded.verdicts.values()))
        smoke.end()
        for measured in measured_rows.measure(sweep, chosen, "check", machine.digests_of(chosen)):
            board.add(measured)
            rows += measured
        board.end()
    _standing(rows, earlier, device, about)
    if smoke.failed and not board.failed:
        print("The board's cases do not show what smoke found: mend it, it is wrong all the same.")
    return not (smoke.failed or board.failed)


class Report:
    """What a tier found wrong, the first few cases of each kind, and a summary."""

    def __init__(self, tier: str, verbose: bool) -> None:
        self.tier, self.verbose = tier, verbose
        self.failed = False
        self._counts: dict[str, Counter[str]] = defaultdict(Counter)
        self._unsupported: dict[str, Counter[str]] = defaultdict(Counter)
        self._cases: Counter[tuple[str, str]] = Counter()

    def add(self, directions: Sequence[Verdict | Record]) -> None:
        """The verdicts of one solution and case."""
        told: dict[tuple[str, str], list[str]] = defaultdict(list)
        for found in directions:
            self._counts[found.solution][found.verdict] += 1
            if found.verdict == "UNSUPPORTED":
                self._unsupported[found.solution][found.reason] += 1
            elif found.verdict not in FINE:
                told[found.verdict, found.reason].append(found.direction)
        for (verdict, reason), where in told.items():
            self.failed = True
            solution, case = directions[0].solution, directions[0].case
            self._cases[solution, verdict] += 1
            most = 1 if verdict == "COMPILE_ERROR" else SHOWN
            if self.verbose or self._cases[solution, verdict] <= most:
                print(
                    f"{solution} {case} {' and '.join(where)}: {verdict}\n    {reason}", flush=True
                )

    def end(self) -> None:
        """How many of each verdict, and what is unsupported."""
        for solution, counted in self._counts.items():
            verdicts = ", ".join(f"{n} {verdict}" for verdict, n in counted.most_common())
            more = " (--verbose shows each)" if self._hidden(solution) and not self.verbose else ""
            print(f"{solution}, {self.tier}: {verdicts}{more}")
            for reason, n in self._unsupported[solution].most_common():
                print(f"    unsupported: {reason} ({n})")

    def _hidden(self, solution: str) -> bool:
        return any(n > 1 for (name, _), n in self._cases.items() if name == solution)


def _standing(
    rows: Iterable[Record], earlier: Results, device: str, about: Mapping[str, About]
) -> None:
    """The board as it would be with these rows in it."""
    rows = list(rows)
    if not earlier.rows:
        print("There is no board of this device yet: nox -s bench leaderboard makes one.")
    if device == "cpu":
        print("Nothing is timed without a GPU: the board shows who covers what.")
    latest = {row.key: row for row in [*earlier.latest(), *rows] if row.solution in about}
    mine = {(row.op, row.track) for row in rows}
    handle = rows[0].solution.partition("/")[0]
    for track in rank(latest.values()):
        if (track.op, track.name) in mine:
            terminal.show_track(track, about, device != "cpu", terminal.console(), handle)
