"""The tables of docs/rope.md and docs/masked.md whose figures are of the latest records.

    python -m tests.generators.figures DEVICE [PAGE...]    # a folder of results/, by default both

A page marks each table by its name. In a ladder a row's link names a solution and a column's head a
case; the other tables are written whole. Times are in microseconds. A share is of the limit, a
multiple of eager's speed, and `other` is the fastest solution that is not the house's.
"""

import re
import sys

from common import solutions
from common.board.ranking import DIRECTION, Quantity, reached, slower_limit
from common.paths import RESULTS, ROOT
from common.records import runs
from common.spec import DIRECTIONS
from tests.support.corpora import in_the_docs

OPS = {"rope": ("rope", "rope_qk"), "masked": ("masked_linear", "masked_ffn")}
OTHER, BOTH = "other", ("house/{}", "house/{}_fast")
LIBRARIES = "quack/rope", "flash_attention/rope", "transformer_engine/rope"
SMALL = *BOTH, LIBRARIES[0], LIBRARIES[2]
PAIRED = "standard", "partial", "interleaved", "packed"
TIMES = {
    "rope": {
        "pairs": (("rope",), "gpu", PAIRED, (*BOTH, *LIBRARIES)),
        "others": (("rope",), "gpu", ("core", "extended"), (*BOTH, LIBRARIES[2])),
        "small": (("rope",), "host", PAIRED, SMALL),
        "small-loop": (("rope",), "solution", PAIRED, SMALL),
    },
    "masked": {
        "results": (OPS["masked"], "gpu", ("standard",), (*BOTH, OTHER)),
        "loops": (OPS["masked"], "solution", ("standard",), (*BOTH, OTHER)),
    },
}
"""By page and table: the ops, a column of the board without direction, tracks and solutions."""


def of_quantity(rows, by):
    """Return the times of a column of the board: by op and case, by direction, by solution."""
    cells = {}
    for row in rows:
        if (times := Quantity(by, row.direction).times(row)) and "eager/" not in row.solution:
            of_case = cells.setdefault((row.op, row.case), {})
            of_case.setdefault(row.direction, {})[row.solution] = times
    return cells


def beside(times):
    """Return the name of the limit that was timed beside a solution, or else of eager."""
    return slower_limit(times) or "eager"


def fastest(times, house):
    """Return the solution with the greatest share that is the house's or is not; "" for none."""
    own = [each for each in times if each.startswith("house/") is house]
    return max(own, key=lambda each: reached(times[each]).value, default="")


def figure(op, times, column):
    """Return the time of a column's solution in one direction, and its share in parentheses."""
    name = fastest(times, False) if column == OTHER else column.format(op)
    if name not in times:
        return "–"
    shown = f"{reached(times[name]).value:.2f}" + "×" * (beside(times[name]) == "eager")
    library = f" {name.partition('/')[0]}" * (column == OTHER)
    return f"{times[name]['solution'].value:.1f} ({shown.removeprefix('0')}){library}"


def of_times(rows, ops, by, tracks, columns):
    """Return the lines of a table: the time of the limit or of eager, and of each solution."""
    cases = of_quantity([row for row in rows if row.op in ops and row.track in tracks], by)
    heads, limits = [each.format("…" if ops[1:] else ops[0]) for each in columns], set()
    lines = []
    for (op, case), ways in cases.items():
        nearest = [times[fastest(times, True) or fastest(times, False)] for times in ways.values()]
        limits |= {beside(times) for times in nearest}
        cells = [", ".join(figure(op, times, each) for times in ways.values()) for each in columns]
        over = ", ".join(f"{times[beside(times)].value:.1f}" for times in nearest)
        lines.append((f"{op} `{case}`", over, *cells))
    return [("case", " or ".join(sorted(limits)), *heads), *lines]


def of_others(rows, ops):
    """Yield the lines of a table: where a library's share is above the house's, both intervals."""
    yield "case", "", "the house", "the best other", "ahead by"
    ranked = [row for row in rows if row.op in ops and row.ranked_by == "gpu"]
    for (op, case), ways in of_quantity(ranked, "gpu").items():
        for direction, times in ways.items():
            house, other = fastest(times, True), fastest(times, False)
            if not (house and other):
                continue
            own, more = reached(times[house]), reached(times[other])
            if more.low > own.high:
                cells = figure(op, times, house), figure(op, times, OTHER)
                ahead = f"{100 * (more.value / own.value - 1):.0f} %"
                yield f"{op} `{case}`", DIRECTION[direction], *cells, ahead


def drawn(lines):
    """Return a table in Markdown whose figures are to the right."""
    head, *rest = lines
    every = [head, ("---", *["---:"] * (len(head) - 1)), *rest]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in every)


def ladder(table, rows):
    """Return a table with the figures of rows."""
    head, line, *steps = table.splitlines()
    lines = [head, line]
    for step in steps:
        cells = step.strip("| ").split(" | ")[:2]
        solution = re.search(r"contributors/(\w+/\w+)\.py", cells[0])[1]
        for case in re.findall(r"`(\S+)`", head):
            found = [row for row in rows if (row.solution, row.case) == (solution, case)]
            found.sort(key=lambda row: row.direction != DIRECTIONS[0])
            shares = (f"{reached(row.gpu).value:.2f}".lstrip("0") for row in found)
            cells.append(", ".join(shares) or "none")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(device, *pages):
    """Write the figures of a device into pages, by default both."""
    known = {each.name for each in solutions.everyone(installed=False)}
    rows = [
        row for row in runs.read(RESULTS / device).latest() if row.gpu and row.solution in known
    ]
    if not rows:
        sys.exit(f"results/{device} has no time by a GPU")
    for page in pages or TIMES:
        text = (ROOT / "docs" / f"{page}.md").read_text()
        table = re.search(r"<!-- ladder -->\n(.*?)\n<!--", text, re.DOTALL)[1]
        tables = {
            "ladder": ladder(table, rows),
            "ahead": drawn(of_others(rows, OPS[page])),
            **{name: drawn(of_times(rows, *asked)) for name, asked in TIMES[page].items()},
            "runs": ", ".join(sorted({row.run for row in rows if row.op in OPS[page]})),
        }
        for name, text in tables.items():
            in_the_docs(name, text, True, page)


if __name__ == "__main__":
    main(*sys.argv[1:])
