"""Write docs/timing.md's table of how well runs on one kind of device agree, by column.

    python -m tests.generators.agreement DEVICE    # a folder of results/

For each op: the latest run, and the earlier one that shares the most rows with it. Rows are of
solutions whose sources are the same in both, plain torch left out. Places are by the mean over the
op's cases that both runs have of the most solutions.
"""

import sys
from collections import Counter, defaultdict

import numpy as np

from common.board.ranking import CLOCKS, LOOPS, QUANTITIES, reached, slower_limit
from common.paths import RESULTS
from common.records import runs
from tests.support.corpora import in_the_docs
from tests.support.fitting import rank_correlation

UNITS = {"copy": "share of a copy", "dense": "share of dense products", "": "× plain torch"}
"""What a row's value is, by the limit whose time is divided by the solution's; "" is eager's."""
FEWEST = 4
"""The solutions whose places are worth a correlation."""


def pairs_of(rows):
    """Return pairs of rows by the ids of an earlier and a later run, the most for each op."""
    ran = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        if (
            row.tier == "board"
            and row.verdict == "PASSED"
            and not row.solution.startswith("eager/")
        ):
            ran[row.op][row.run][row.key] = row
    found = {}
    for of_op in ran.values():
        later = [*of_op][-1]
        both = [
            ((earlier, later), [
                (row, of_op[later][key]) for key, row in own.items()
                if key in of_op[later] and row.sources == of_op[later][key].sources
            ])
            for earlier, own in of_op.items() if earlier != later
        ]  # fmt: skip
        for runs_of, pairs in [max(both, key=lambda each: len(each[1]))] if both else ():
            found.setdefault(runs_of, []).extend(pairs)  # two runs may have several ops
    return found


def table(pairs):
    """Return the table of pairs of rows, of an earlier and a later run."""
    columns = defaultdict(list)  # of op and direction, case, solution, and the value in either run
    for pair in pairs:
        for quantity in QUANTITIES:
            both = [quantity.times(row) for row in pair]
            if all(both):
                values = [reached(each).value for each in both]
                name = f"{(CLOCKS | LOOPS)[quantity.by]}, {UNITS[slower_limit(both[1])]}"
                row = pair[1]
                columns[name].append(((row.op, row.direction), row.case, row.solution, values))
    lines = [
        "| column | rows | differ by at most 3 % | 10 % | median | rank correlation, the least |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, rows in columns.items():
        apart = np.array([abs(values[1] / values[0] - 1) for *_, values in rows])
        close = " | ".join(str((apart <= most).sum()) for most in (0.03, 0.1))
        least = f"{min(correlations(rows), default=np.nan):.2f}".replace("nan", "–")
        median = f"{100 * np.median(apart):.1f} %"
        lines.append(f"| {name} | {len(rows)} | {close} | {median} | {least} |")
    return "\n".join(lines)


def correlations(rows):
    """Yield how far the solutions' places agree, for each op and direction of a column."""
    places = defaultdict(list)
    for place, *rest in rows:
        places[place].append(rest)
    for own in places.values():
        counts, logs = Counter(case for case, *_ in own), defaultdict(list)
        for case, solution, values in own:
            if counts[case] == max(counts.values()):
                logs[solution].append(np.log(values))
        if len(logs) >= FEWEST:
            yield rank_correlation(*np.transpose([np.mean(each, axis=0) for each in logs.values()]))


def main(device):
    """Write the table of a device, and which runs it is of."""
    found = pairs_of(runs.read(RESULTS / device).rows)
    names = ", ".join(f"{earlier} and {later}" for earlier, later in found)
    every = [pair for pairs in found.values() for pair in pairs]
    in_the_docs("agreement", f"{table(every)}\n\nRuns {names}.", True, "timing")


if __name__ == "__main__":
    main(*sys.argv[1:])
