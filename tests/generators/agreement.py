"""Write docs/timing.md's table of how well two runs on one kind of device agree, by column.

    python -m tests.generators.agreement DEVICE RUN RUN    # a folder of results/, ids of runs

Rows are of solutions whose sources are the same in both runs, plain torch left out. Places are by
the mean over the column's cases that both runs have of the most solutions.
"""

import math
import statistics
import sys
from collections import Counter, defaultdict

from common.board import ranking
from common.paths import RESULTS
from common.records import runs
from tests.support.corpora import in_the_docs


def by_host(row):
    """Return how many times as fast as plain torch a row is, by the host."""
    return row.host["eager"].value / row.host["solution"].value


def in_a_loop(row):
    """Return how many times as fast as plain torch a row is in a loop."""
    return row.sustained["eager"] / row.sustained["solution"]


COLUMNS = {
    "GPU, share of a copy": ("gpu", ranking.share),
    "host, × plain torch": ("host", by_host),
    "in a loop, × plain torch": ("host", in_a_loop),
}


def table(pairs):
    """Return the table of pairs of rows, of an earlier and a later run."""
    lines = [
        "| column | rows | differ by at most 3 % | 10 % | median | rank correlation |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for column, (clock, value) in COLUMNS.items():
        ranked = [pair for pair in pairs if pair[0].ranked_by == clock]
        counts, means = Counter(row.case for row, _ in ranked), defaultdict(lambda: ([], []))
        apart = []
        for pair in ranked:
            values, row = [*map(value, pair)], pair[0]
            apart.append(abs(values[1] / values[0] - 1))
            if counts[row.case] == max(counts.values()):
                for of_run, each in zip(means[row.direction, row.solution], values, strict=True):
                    of_run.append(math.log(each))
        shown = [len(apart), *(sum(each <= most for each in apart) for most in (0.03, 0.1))]
        shown.append(f"{100 * statistics.median(apart):.1f} %")
        shown.append(
            ", ".join(f"{correlation(means, each):.2f}" for each in ("forward", "backward"))
        )
        lines.append(f"| {column} | {' | '.join(map(str, shown))} |")
    return "\n".join(lines)


def correlation(means, direction):
    """Return the correlation of the solutions' places in the two runs, in one direction."""
    of_solution = [
        map(statistics.fmean, both) for key, both in means.items() if key[0] == direction
    ]
    places = []
    for of_run in zip(*of_solution, strict=True):
        places.append([sorted(of_run).index(each) for each in of_run])
    return statistics.correlation(*places)


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
