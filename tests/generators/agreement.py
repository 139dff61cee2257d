"""Write docs/timing.md's table of how well two runs on one kind of device agree, by column.

    python -m tests.generators.agreement DEVICE RUN RUN    # a folder of results/, ids of runs

Rows are of solutions whose sources are the same in both runs, plain torch left out. Places are by
the mean over the column's cases that both runs have of the most solutions.
"""

import sys
from collections import Counter, defaultdict

import numpy as np

from common.board import ranking
from common.paths import RESULTS
from common.records import runs
from common.spec import DIRECTIONS
from tests.support.corpora import in_the_docs
from tests.support.fitting import rank_correlation

COLUMNS = {
    "GPU, share of a copy": ("gpu", ranking.share),
    "host, × plain torch": ("host", lambda row: ranking.median(row, "eager") / ranking.median(row)),
    "in a loop, × plain torch": (
        "host", lambda row: row.sustained["eager"] / row.sustained["solution"]
    ),
}  # fmt: skip
"""By heading, the clock that ranks the column's rows, and what a row's value is."""


def table(pairs):
    """Return the table of pairs of rows, of an earlier and a later run."""
    lines = [
        "| column | rows | differ by at most 3 % | 10 % | median | rank correlation |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for column, (clock, value) in COLUMNS.items():
        rows = [earlier for earlier, _ in pairs if earlier.ranked_by == clock]
        values = np.array([[*map(value, pair)] for pair in pairs if pair[0].ranked_by == clock])
        apart = abs(values[:, 1] / values[:, 0] - 1)
        counts, logs = Counter(row.case for row in rows), defaultdict(lambda: defaultdict(list))
        for row, each in zip(rows, np.log(values), strict=True):
            if counts[row.case] == max(counts.values()):
                logs[row.direction][row.solution].append(each)
        means = ([np.mean(each, axis=0) for each in logs[way].values()] for way in DIRECTIONS)
        places = ", ".join(f"{rank_correlation(*np.transpose(each)):.2f}" for each in means)
        close = " | ".join(str((apart <= most).sum()) for most in (0.03, 0.1))
        median = f"{100 * np.median(apart):.1f} %"
        lines.append(f"| {column} | {len(rows)} | {close} | {median} | {places} |")
    return "\n".join(lines)


def main(device, *names):
    """Write the table of two runs of a device."""
    rows = runs.read(RESULTS / device).rows
    earlier, later = ({row.key: row for row in rows if row.run == name} for name in names)
    pairs = [
        (row, later[key]) for key, row in earlier.items()
        if key in later and row.sources == later[key].sources
        and row.verdict == later[key].verdict == "PASSED" and not row.solution.startswith("eager/")
    ]  # fmt: skip
    in_the_docs("agreement", table(pairs), True, "timing")


if __name__ == "__main__":
    main(*sys.argv[1:])
