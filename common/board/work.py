"""Counted work as tables: bytes and FLOPs against the least that any solution needs; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from common import stats
from common.board.table import About, Table, named, place
from common.records.lines import Counted, Launch

HEADER = ("solution", "× least bytes", "× read again", "× least FLOPs", "kernels", "operators")
FOOTNOTE = (
    "bytes are those that reach memory; read again is what programs fetch over what the launch"
    " reads; FLOPs are of products alone; kernels and operators are of the case with the most"
)


def tables(counts: Iterable[Counted], known: Mapping[str, About]) -> list[Table]:
    """Return a table for each op: every known solution's work, the geometric mean of its cases."""
    ops: dict[str, dict[str, list[Counted]]] = {}
    for each in counts:
        if each.solution in known:
            ops.setdefault(each.op, {}).setdefault(each.solution, []).append(each)
    return [
        Table(f"{op}, counted work", HEADER, tuple(map(_row, solutions.values())), (FOOTNOTE,))
        for op, solutions in sorted(ops.items(), key=lambda each: place(each[0]))
    ]


def _row(cases: Sequence[Counted]) -> tuple[str, ...]:
    kernels = [sum(isinstance(step, Launch) for step in case.steps) for case in cases]
    operators = [len(case.steps) - number for case, number in zip(cases, kernels, strict=True)]
    return (
        named(cases[0]),
        _times(cases, moved, lambda case: case.bytes),
        _times(cases, fetched, read),
        _times(cases, multiplied, lambda case: case.flops),
        str(max(kernels)),
        str(max(operators)),
    )


Amount = Callable[[Counted], float]


def _times(cases: Iterable[Counted], amount: Amount, least: Amount) -> str:
    """Return how many times the least it is, or a dash where there is none of it."""
    ratios = [amount(case) / least(case) for case in cases if amount(case) and least(case)]
    return f"{stats.geometric_mean(ratios):.2f}" if ratios else "–"


def moved(case: Counted) -> int:
    """Return the bytes that reach memory, read and written."""
    return sum(step.read + step.written for step in case.steps)


def read(case: Counted) -> int:
    """Return the bytes that kernels read, once a launch."""
    return sum(step.read for step in case.steps if isinstance(step, Launch))


def fetched(case: Counted) -> int:
    """Return the bytes that kernels read, once a program."""
    return sum(step.fetched for step in case.steps if isinstance(step, Launch))


def multiplied(case: Counted) -> int:
    """Return the FLOPs of products."""
    return sum(
        sum(step.flops.values()) if isinstance(step, Launch) else step.flops for step in case.steps
    )
