"""Times that something other than the solution touched: on the GPU, or on its host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from common.board.ranking import Entry
from common.records.lines import Influences

DISTURBED = "‡"
MEASURED: Mapping[str, str] = {
    "gpu": "throttled, shared or disturbed GPU",
    "host": "disturbed host",
}
"""The machine of disturbed times, by the clock that took them."""


def by_clock(influences: Iterable[Influences]) -> Influences:
    """Return the reasons of several rows, each once, by the clock whose times they touched."""
    rows = list(influences)
    found = {clock: [reason for row in rows for reason in row.get(clock, ())] for clock in MEASURED}
    return {clock: list(dict.fromkeys(reasons)) for clock, reasons in found.items() if reasons}


def footnotes(entries: Sequence[Entry]) -> list[str]:
    """Return a footnote by clock: the kinds of disturbance, and the number of rows that had any."""
    rows = [influences for entry in entries for influences in entry.disturbed.values()]
    timed = sum(bool(row.gpu) for entry in entries for row in entry.cells.values())
    return [
        f"{DISTURBED} measured in part on a {MEASURED[clock]}: {', '.join(sorted(reasons))}"
        f" ({sum(clock in row for row in rows)} of the table's {timed} timed rows)"
        for clock, reasons in by_clock(rows).items()
    ]
