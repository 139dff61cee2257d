"""What compilers made of each solution's kernels, as tables; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from common.board.table import Table, op_order
from common.records.lines import Compiled

COLUMNS: Mapping[str, str] = {
    "registers": "regs", "local": "local", "shared": "shared", "warps": "warps",
    "instructions": "instr", "wide": "wide", "tensor": "mma", "occupancy": "occ",
}  # fmt: skip
"""The heading of each figure."""
HEADER = ("kernel", "target", "forms", *COLUMNS.values())
SHARES = ("wide", "occupancy")


def tables(lines: Iterable[Compiled]) -> list[Table]:
    """Return a table for each solution, by op: a row for each kernel and target.

    A kernel has one form for each set of figures that its cases lead to; a cell is the range over
    all forms, from the least to the greatest. Footnotes name the calls that ended early.
    """
    of: dict[tuple[str, str], list[Compiled]] = defaultdict(list)
    for line in lines:
        of[line.op, line.solution].append(line)
    ordered = sorted(of, key=lambda each: (op_order(each[0]), each[1]))
    return [
        Table(solution, HEADER, tuple(_rows(of[op, solution])), _ends(of[op, solution]))
        for op, solution in ordered
    ]


def summary(lines: Iterable[Compiled]) -> Table:
    """Return a row for each kernel of a direction over all cases and targets; most local first."""
    of: dict[tuple[str, str, str], list[Compiled]] = defaultdict(list)
    for line in lines:
        if line.kernel:
            of[line.solution, line.kernel, line.direction or ""].append(line)
    several = len({solution.partition("/")[0] for solution, *_ in of}) > 1

    def local(several: Iterable[Compiled]) -> float:
        return max(line.figures.get("local") or 0 for line in several)

    rows = tuple(
        (
            f"{solution if several else solution.partition('/')[2]}: {kernel}",
            direction,
            *(cell(name, (line.figures.get(name) for line in found)) for name in COLUMNS),
        )
        for (solution, kernel, direction), found in sorted(
            of.items(), key=lambda item: -local(item[1])
        )
    )
    return Table("", ("kernel", "first in", *COLUMNS.values()), rows)


def ends(lines: Sequence[Compiled], unsupported: bool) -> list[str]:
    """Return a line for each reason for which calls failed, or were not supported."""
    of: dict[str, list[Compiled]] = defaultdict(list)
    for line in lines:
        if not line.reason or (line.verdict == "UNSUPPORTED") == unsupported:
            of[line.solution].append(line)
    return [f"{solution}: {end}" for solution, found in of.items() for end in _ends(found)]


def cell(column: str, values: Iterable[float | None]) -> str:
    """Return the least and the greatest of a figure over some kernels, or a dash."""
    known = sorted({value for value in values if value is not None})
    if not known:
        return "–"
    return "–".join(dict.fromkeys(_number(column, value) for value in (known[0], known[-1])))


def _number(column: str, value: float) -> str:
    return f"{value:.0%}" if column in SHARES else f"{value:,.0f}"


def _rows(lines: Sequence[Compiled]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each kernel and target; the kernel's name stands in the first of its rows."""
    of: dict[str, dict[str, list[Compiled]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        if line.kernel:
            of[line.kernel][line.target].append(line)
    for kernel, targets in of.items():
        for name, found in zip([kernel, *[""] * len(targets)], targets.items(), strict=False):
            yield name, *_row(*found)


def _row(target: str, lines: Sequence[Compiled]) -> tuple[str, ...]:
    forms = {str(line.figures) for line in lines}
    cells = (cell(column, (line.figures.get(column) for line in lines)) for column in COLUMNS)
    return target, str(len(forms)), *cells


def _ends(lines: Sequence[Compiled]) -> tuple[str, ...]:
    """Return a footnote for each reason for which calls ended, with their cases and targets."""
    of: dict[str, list[Compiled]] = defaultdict(list)
    for line in lines:
        if line.reason:
            of[f"{line.verdict}: {line.reason}"].append(line)
    every = {line.target for line in lines}
    return tuple(f"{reason} ({_where(ended, every)})" for reason, ended in of.items())


def _where(ended: Sequence[Compiled], every: set[str]) -> str:
    """Return the cases and, unless they are all of them, the targets."""
    cases = list(dict.fromkeys(line.case for line in ended))
    targets = list(dict.fromkeys(line.target for line in ended))
    words = cases[0] if len(cases) == 1 else f"{len(cases)} cases"
    return words if set(targets) == every else f"{words}, {', '.join(targets)}"
