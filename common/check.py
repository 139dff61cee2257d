"""One folder by itself: graded on the smoke cases, measured on the board's, and given its place."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from common import bench, records
from common.board import terminal
from common.board.ranking import rank
from common.board.table import About
from common.grade import FINE, Verdict
from common.records import Record
from common.solutions import Solution
from common.sweep import Sweep, tier_cases


def check(chosen: Sequence[Solution], device: str, quiet: bool, about: Mapping[str, About]) -> bool:
    """Print what is wrong and where the folder would stand; whether nothing was wrong."""
    with Sweep(device, quiet=quiet) as sweep:
        graded = [
            verdict
            for op, cases in tier_cases(chosen, "smoke", device)
            for *_, verdicts in sweep.grade(op, cases, chosen)
            for verdict in verdicts.values()
        ]
        _report("smoke", graded)
        digests = {s: (s.digest, bench.harness_digest()) for s in chosen}
        rows = [row for few in bench.measure(sweep, chosen, "check", digests) for row in few]
    _report("board", rows)
    _standing(rows, device, about)
    verdicts = {result.verdict for results in (graded, rows) for result in results}
    return verdicts <= set(FINE)


def _report(tier: str, results: Iterable[Verdict | Record]) -> None:
    """Every failure with its reason, then how many of each verdict a solution got."""
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for result in results:
        counts[result.solution, result.op][result.verdict] += 1
        if result.verdict not in FINE:
            print(f"{result.solution} {result.case} {result.direction}: {result.verdict}")
            print(f"    {result.reason}")
    for (solution, _), counted in counts.items():
        verdicts = ", ".join(f"{n} {verdict}" for verdict, n in counted.most_common())
        print(f"{solution}, {tier}: {verdicts}")


def _standing(rows: Sequence[Record], device: str, about: Mapping[str, About]) -> None:
    """The board as it would be with these rows in it."""
    earlier = records.read(records.RESULTS / bench.results_file(device))
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
