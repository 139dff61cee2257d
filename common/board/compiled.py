"""Tables of each solution's compiled kernels, as pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from common.board.table import Table, op_order
from common.records.lines import Compiled

COLUMNS: Mapping[str, str] = {
    "registers": "regs", "local": "local", "shared": "shared", "warps": "warps",
    "instructions": "instr", "wide": "wide", "tensor": "mma", "occupancy": "occ",
}  # fmt: skip
"""The heading of each compiler figure."""
HEADER = ("kernel", "target", "forms", *COLUMNS.values())
SHARES = ("wide", "occupancy")


def tables(lines: Iterable[Compiled]) -> list[Table]:
    """Return a table for each solution, by op: a row for each kernel and target.

    A kernel has one form for each distinct set of figures. A cell is the range over all forms, from
    the minimum to the maximum. Footnotes name the calls that ended early.
    """
    by_solution: dict[tuple[str, str], list[Compiled]] = defaultdict(list)
    for line in lines:
        by_solution[line.op, line.solution].append(line)
    ordered = sorted(by_solution.items(), key=lambda item: (op_order(item[0][0]), item[0][1]))
    return [
        Table(solution, HEADER, tuple(_rows(of_solution)), _ends(of_solution))
        for (_, solution), of_solution in ordered
    ]


def summary(lines: Iterable[Compiled]) -> Table:
    """Return a row for each kernel and direction, over all cases and targets.

    The kernel with the most local memory, which holds spilled registers, is the first.
    """
    by_kernel: dict[tuple[str, str, str], list[Compiled]] = defaultdict(list)
    for line in lines:
        if line.kernel:
            by_kernel[line.solution, line.kernel, line.direction or ""].append(line)
    several_handles = len({solution.partition("/")[0] for solution, *_ in by_kernel}) > 1

    def local(of_kernel: Iterable[Compiled]) -> float:
        return max(line.figures.get("local") or 0 for line in of_kernel)

    rows = tuple(
        (
            f"{solution if several_handles else solution.partition('/')[2]}: {kernel}",
            direction,
            *(cell(name, (line.figures.get(name) for line in of_kernel)) for name in COLUMNS),
        )
        for (solution, kernel, direction), of_kernel in sorted(
            by_kernel.items(), key=lambda item: -local(item[1])
        )
    )
    return Table("", ("kernel", "first in", *COLUMNS.values()), rows)


def ends(lines: Sequence[Compiled], unsupported: bool) -> list[str]:
    """Return a line for each reason why calls failed or, with `unsupported`, are not supported."""
    by_solution: dict[str, list[Compiled]] = defaultdict(list)
    for line in lines:
        if not line.reason or (line.verdict == "UNSUPPORTED") == unsupported:
            by_solution[line.solution].append(line)
    return [
        f"{solution}: {end}"
        for solution, of_solution in by_solution.items()
        for end in _ends(of_solution)
    ]


def cell(column: str, values: Iterable[float | None]) -> str:
    """Return the range of a figure's values from minimum to maximum, or a dash without a value."""
    known = sorted({value for value in values if value is not None})
    if not known:
        return "–"
    return "–".join(dict.fromkeys(_number(column, value) for value in (known[0], known[-1])))


def _number(column: str, value: float) -> str:
    return f"{value:.0%}" if column in SHARES else f"{value:,.0f}"


def _rows(lines: Sequence[Compiled]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each kernel and target, with the kernel's name in the kernel's first row."""
    by_kernel: dict[str, dict[str, list[Compiled]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        if line.kernel:
            by_kernel[line.kernel][line.target].append(line)
    for kernel, targets in by_kernel.items():
        for name, target in zip([kernel, *[""] * len(targets)], targets.items(), strict=False):
            yield name, *_row(*target)


def _row(target: str, lines: Sequence[Compiled]) -> tuple[str, ...]:
    forms = {str(line.figures) for line in lines}
    cells = (cell(column, (line.figures.get(column) for line in lines)) for column in COLUMNS)
    return target, str(len(forms)), *cells


def _ends(lines: Sequence[Compiled]) -> tuple[str, ...]:
    """Return a footnote for each reason why calls ended, with the cases and targets."""
    by_reason: dict[str, list[Compiled]] = defaultdict(list)
    for line in lines:
        if line.reason:
            by_reason[f"{line.verdict}: {line.reason}"].append(line)
    all_targets = {line.target for line in lines}
    return tuple(f"{reason} ({_where(ended, all_targets)})" for reason, ended in by_reason.items())


def _where(ended: Sequence[Compiled], all_targets: set[str]) -> str:
    """Return the cases, and the targets unless they are all targets."""
    cases = list(dict.fromkeys(line.case for line in ended))
    targets = list(dict.fromkeys(line.target for line in ended))
    words = cases[0] if len(cases) == 1 else f"{len(cases)} cases"
    return words if set(targets) == all_targets else f"{words}, {', '.join(targets)}"
