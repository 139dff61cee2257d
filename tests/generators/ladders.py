"""The figures of the ladders in docs/rope.md and docs/masked.md, from the records.

    python -m tests.generators.ladders DEVICE [PAGE...]    # a folder of results/, by default both

A row's link names a solution, a column's head a case. A figure is the share of the limit by the
GPU's clock, forward and with backward, or "none" where the device has no such time.
"""

import re
import sys

from common.board import ranking
from common.paths import RESULTS, ROOT
from common.records import runs
from tests.support.corpora import in_the_docs


def figures(table, rows):
    """Return a table with the figures of rows, and the runs that these are of."""
    head, line, *steps = table.splitlines()
    used, drawn = set(), [head, line]
    for step in steps:
        cells = step.strip("| ").split(" | ")[:2]
        solution = re.search(r"contributors/(\w+/\w+)\.py", cells[0])[1]
        for case in re.findall(r"`(\S+)`", head):
            found = [row for row in rows if (row.solution, row.case) == (solution, case)]
            used |= {row.run for row in found}
            found.sort(key=lambda row: row.direction != "forward")
            shares = (f"{ranking.share(row):.2f}".lstrip("0") for row in found)
            cells.append(", ".join(shares) or "none")
        drawn.append(f"| {' | '.join(cells)} |")
    return "\n".join([*drawn, "", f"By runs of `results/`: {', '.join(sorted(used))}."])


def main(device, *pages):
    """Write the figures of a device into pages, by default both."""
    if not (rows := [row for row in runs.read(RESULTS / device).latest() if row.gpu]):
        sys.exit(f"results/{device} has no time by a GPU")
    for page in pages or ("rope", "masked"):
        text = (ROOT / "docs" / f"{page}.md").read_text()
        table = re.search(r"<!-- ladder -->\n(.*?)\n\n", text, re.DOTALL)[1]
        in_the_docs("ladder", figures(table, rows), True, page)


if __name__ == "__main__":
    main(*sys.argv[1:])
