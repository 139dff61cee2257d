"""The data of the plots; `figures` draws them.

The plots show the records of the tier `plot`, and the board's records of the same cases. A plot has
panels, a panel has lines, and a line is a median with its 95 % interval at each x. A sweep selects
its cases by their parameters: `rope-bandwidth` has the cases with b 1, h 8 and d 256, and its x is
s. The x of an op whose cases have a shape is the number of rows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.board.ranking import LIMITS, Estimate
from common.paths import PLOTS, ROOT
from common.records.lines import Record
from common.records.runs import Results

MILLI = 1e-3


# --- the cases ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sweep:
    """Cases whose parameters equal `where`, apart from the parameter on the x axis."""

    name: str
    op: str
    title: str
    x_label: str
    x: str
    where: Mapping[str, Any]
    rates: bool = False
    log2: bool = True
    default: int = 1
    """The x of a case without this parameter."""
    width: int | None = None
    """The size of a shape's last dimension; x is then the shape's number of rows."""

    def at(self, params: Mapping[str, Any]) -> int:
        """Return the x of a case's parameters."""
        x = params.get(self.x, self.default)
        return math.prod(x[:-1]) if self.width else int(x)


def _masks(op: str, layer: str, widths: list[int]) -> Iterator[Sweep]:
    """Yield the sweeps of a masked op over tokens, over spans, and over random masks."""
    where: dict[str, Any] = {"dtype": "bfloat16", "widths": widths}
    yield Sweep(
        f"{op}-tokens", op, f"{op}: time over token count",
        f"tokens ({layer}, bfloat16, one visual span)", "tokens", where,
    )  # fmt: skip
    where = {**where, "tokens": 16384}
    yield Sweep(
        f"{op}-spans", op, f"{op}: time over the number of visual spans",
        f"visual spans among 16,384 tokens ({layer}, bfloat16)", "sequences", where,
    )  # fmt: skip
    yield Sweep(
        f"{op}-random", op, f"{op}: time over the visual tokens of a random mask",
        f"visual tokens in percent of 16,384 ({layer}, bfloat16)", "percent",
        {**where, "mask": "random"}, log2=False, default=50,
    )  # fmt: skip


SWEEPS = (
    Sweep(
        "rope-bandwidth", "rope", "rope: bandwidth over sequence length",
        "sequence length (b 1, h 8, d 256, float32)", "s",
        {"dtype": "float32", "b": 1, "h": 8, "d": 256, "d2": 256, "angles": "model"}, rates=True,
    ),
    Sweep(
        "rope-length", "rope", "rope: time over sequence length",
        "sequence length (b 16, h 10, d 512, of which 256 turn, float32)", "s",
        {"dtype": "float32", "b": 16, "h": 10, "d": 512, "d2": 256}, log2=False,
    ),
    *_masks("masked_linear", "1024 to 1024 features", [1024, 1024]),
    *_masks("masked_ffn", "width 1024, intermediate 2048", [1024, 2048]),
)  # fmt: skip
"""An option that is missing in `where` has its default; see `Case.params`."""


def _over_rows(rows: Iterable[Record]) -> Iterator[Sweep]:
    """Yield the sweep of each op whose cases of the tier `plot` have a shape."""
    cases = [row for row in rows if row.tier == "plot" and "shape" in row.params]
    for op, params in {row.op: row.params for row in cases}.items():
        dtype, width = params["dtype"], params["shape"][-1]
        yield Sweep(
            f"{op}-rows", op, f"{op}: time over the number of rows",
            f"rows (of {width} elements, {dtype})", "shape", {"dtype": dtype}, width=width,
        )  # fmt: skip


# --- a plot's data --------------------------------------------------------------------------------


Line = dict[int, Estimate]


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    y_label: str
    lines: Mapping[str, Line]
    """The line of each solution."""
    limits: Mapping[str, Line]
    """The line of each limit, which every solution's measurement includes."""


@dataclass(frozen=True)
class Plot:
    """The plot of one file.

    `missing` holds the verdicts of the solutions without a line. The x axis is logarithmic with
    `log2` and linear otherwise; the y axis is linear for rates and logarithmic for times.
    """

    name: str
    op: str
    title: str
    x_label: str
    panels: tuple[Panel, ...]
    peers: frozenset[str]
    missing: Mapping[str, str]
    log2: bool = True
    rates: bool = False


@dataclass(frozen=True)
class Strip:
    """A panel of host times: an estimate for each solution and kind of call."""

    title: str
    times: Mapping[str, Mapping[str, Estimate]]


@dataclass(frozen=True)
class HostPlot:
    """A plot of each solution's host time until the call returns."""

    name: str
    op: str
    title: str
    strips: tuple[Strip, ...]
    peers: frozenset[str]
    missing: Mapping[str, str]


HOST_CALLS = {"no_grad": "forward, no_grad", "forward": "forward", "backward": "forward + backward"}


def rows_of(results: Results, known: Container[str]) -> list[Record]:
    """Return the plots' rows, timed and failed, of the known solutions.

    For an op with rows of the tier `plot`, the board's rows of other cases are added.
    """
    drawn = results.latest("plot")
    ops = {row.op for row in drawn}
    board = [row for row in results.latest() if row.op in ops]
    rows = {row.key: row for row in (*board, *drawn)}
    return [row for row in rows.values() if row.solution in known]


def files(results: Results, drawn: Iterable[Plot | HostPlot]) -> dict[str, str]:
    """Return each plot's title by the plot's path in this repository."""
    folder = PLOTS.relative_to(ROOT)
    return {f"{folder}/{results.path.name}/{plot.name}.svg": plot.title for plot in drawn}


def plots(rows: Sequence[Record]) -> list[Plot | HostPlot]:
    """Return the plots with at least one timed row."""
    plots: list[Plot | HostPlot] = []
    for sweep in (*SWEEPS, *_over_rows(rows)):
        on_sweep = [row for row in rows if row.op == sweep.op and _is_on(sweep, row.params)]
        on_sweep = _of_one_clock(on_sweep)
        # rows of another sweep may belong to this sweep too
        if any(row.tier == "plot" and sweep.x in row.params for row in _timed(on_sweep)):
            plots.append(_swept(sweep, on_sweep))
    by_host = _of_one_clock([row for row in rows if row.op == "rope" and row.ranked_by == "host"])
    return [*plots, *([_host(by_host)] if _timed(by_host) else [])]


def _is_on(sweep: Sweep, params: Mapping[str, Any]) -> bool:
    same = sweep.where == {name: params[name] for name in params if name != sweep.x}
    return same and (not sweep.width or params[sweep.x][-1] == sweep.width)


def _of_one_clock(rows: Sequence[Record]) -> list[Record]:
    """Return the untimed rows and the rows that one version of the clock measured.

    The version is the latest in the rows of the tier `plot`, so that a later board does not remove
    the sweeps.
    """
    timed = _timed(rows)
    own = [row for row in timed if row.tier == "plot"] or timed
    clock = max((row.clock for row in own), default=0)
    return [row for row in rows if not row.gpu or row.clock == clock]


def _swept(sweep: Sweep, rows: Sequence[Record]) -> Plot:
    if sweep.rates:
        panels = [_bandwidth(sweep, rows)]
    else:
        panels = [_forward(sweep, rows), _backward(sweep, rows)]
    return Plot(
        name=sweep.name,
        op=sweep.op,
        title=sweep.title,
        x_label=sweep.x_label,
        panels=tuple(panel for panel in panels if panel.lines),
        peers=frozenset(row.solution for row in rows if row.peer),
        missing=_missing(rows, {name for panel in panels for name in panel.lines}),
        log2=sweep.log2,
        rates=sweep.rates,
    )


def _bandwidth(sweep: Sweep, rows: Iterable[Record]) -> Panel:
    def rate(row: Record, name: str) -> Estimate | None:
        amount = row.bytes / 1e3  # bytes a microsecond, in GB/s
        return Estimate.of(row.gpu[name]).rate(amount) if name in row.gpu else None

    return _panel(sweep, "forward", "GB/s", _timed(rows, "forward"), rate)


def _forward(sweep: Sweep, rows: Iterable[Record]) -> Panel:
    def time(row: Record, name: str) -> Estimate | None:
        return Estimate.of(row.gpu[name], MILLI) if name in row.gpu else None

    return _panel(sweep, "forward", "ms", _timed(rows, "forward"), time)


def _backward(sweep: Sweep, rows: Sequence[Record]) -> Panel:
    """Return the panel of backward alone; its limits are a share of forward + backward's limits."""
    forward = {(row.solution, row.case): row for row in rows if row.direction == "forward"}

    def time(row: Record, name: str) -> Estimate | None:
        before = forward.get((row.solution, row.case))
        if name == "solution":
            name, part = "backward", 1.0
        elif before is None:
            return None
        elif name == "copy":
            part = row.bytes / (row.bytes + before.bytes)
        else:
            part = row.flops / max(row.flops + before.flops, 1)
        return Estimate.of(row.gpu[name], MILLI * part) if name in row.gpu else None

    return _panel(sweep, "backward alone", "ms", _timed(rows, "backward"), time)


def _panel(
    sweep: Sweep,
    title: str,
    unit: str,
    rows: Iterable[Record],
    value: Callable[[Record, str], Estimate | None],
) -> Panel:
    """Return a panel with the values of the solutions and of the limits."""
    lines: dict[str, Line] = defaultdict(dict)
    limits: dict[str, dict[int, list[Estimate]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        x = sweep.at(row.params)
        if of_solution := value(row, "solution"):
            lines[row.solution][x] = of_solution
        for name in LIMITS:
            if limit := value(row, name):
                limits[name][x].append(limit)
    return Panel(title, unit, lines, {name: _middle(by_x) for name, by_x in limits.items()})


def _host(rows: Sequence[Record]) -> HostPlot:
    strips = []
    for case in dict.fromkeys(row.case for row in rows):
        times: dict[str, dict[str, Estimate]] = defaultdict(dict)
        for row in rows:
            if row.case == case and row.host:
                times[row.solution][row.direction] = Estimate.of(row.host["solution"])
                if "no_grad" in row.host:
                    times[row.solution]["no_grad"] = Estimate.of(row.host["no_grad"])
        if times:
            strips.append(Strip(case, times))
    return HostPlot(
        name="rope-host",
        op="rope",
        title="rope: what a call costs the host",
        strips=tuple(strips),
        peers=frozenset(row.solution for row in rows if row.peer),
        missing=_missing(rows, {name for strip in strips for name in strip.times}),
    )


def _timed(rows: Iterable[Record], direction: str | None = None) -> list[Record]:
    return [row for row in rows if direction in (None, row.direction) and row.gpu]


def _middle(measured: Mapping[int, Sequence[Estimate]]) -> Line:
    """Return the median of the limit's estimates at each x."""
    return {
        x: sorted(estimates, key=lambda estimate: estimate.value)[len(estimates) // 2]
        for x, estimates in sorted(measured.items())
    }


def _missing(rows: Iterable[Record], drawn: Iterable[str]) -> dict[str, str]:
    """Return the first verdict of each measured solution without a line."""
    drawn = set(drawn)
    missing: dict[str, str] = {}
    for row in rows:
        if row.solution not in drawn and row.verdict != "PASSED":
            missing.setdefault(row.solution, row.verdict)
    return missing
