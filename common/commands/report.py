"""The failures of one tier in `study check`, and a summary."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from common.verdicts import FINE, Verdict

if TYPE_CHECKING:
    from common.records.lines import Record

SHOWN = 3
"""The cases shown of each verdict; a file that does not import is reported once."""


class TierReport:
    """The failures of one tier, the first few cases of each kind, and a summary."""

    def __init__(self, tier: str, verbose: bool) -> None:
        """Start with no failure; with `verbose`, every case is shown."""
        self.tier, self.verbose = tier, verbose
        self.failed = False
        self._counts: dict[str, Counter[str]] = defaultdict(Counter)
        self._unsupported: dict[str, Counter[str]] = defaultdict(Counter)
        self._cases: Counter[tuple[str, str]] = Counter()

    def add(self, directions: Sequence[Verdict | Record]) -> None:
        """Count both directions of one solution and case, and show their failures."""
        failures: dict[tuple[str, str], list[str]] = defaultdict(list)
        for found in directions:
            self._counts[found.solution][found.verdict] += 1
            if found.verdict == "UNSUPPORTED":
                self._unsupported[found.solution][found.reason] += 1
            elif found.verdict not in FINE:
                failures[found.verdict, found.reason].append(found.direction)
            if self.verbose and isinstance(found, Verdict):
                for note in found.notes:
                    print(f"{found.solution} {found.case} {found.direction}, a note: {note}")
        for (verdict, reason), where in failures.items():
            self.failed = True
            solution, case = directions[0].solution, directions[0].case
            self._cases[solution, verdict] += 1
            most = 1 if verdict == "COMPILE_ERROR" else SHOWN
            if self.verbose or self._cases[solution, verdict] <= most:
                head = f"{solution} {case} {' and '.join(where)}: {verdict}"
                print(f"{head}\n    {reason}", flush=True)

    def end(self) -> None:
        """Print the number of each verdict, and what is unsupported."""
        for solution, counted in self._counts.items():
            verdicts = ", ".join(f"{n} {verdict}" for verdict, n in counted.most_common())
            more = " (--verbose shows each)" if self._hidden(solution) and not self.verbose else ""
            print(f"{solution}, {self.tier}: {verdicts}{more}")
            for reason, n in self._unsupported[solution].most_common():
                print(f"    unsupported: {reason} ({n})")

    def _hidden(self, solution: str) -> bool:
        return any(n > 1 for (name, _), n in self._cases.items() if name == solution)
