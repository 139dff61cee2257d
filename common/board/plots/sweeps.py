"""The data of the plots; `figures` draws them.

The plots show the records of the tier `plot`, and the board's records of the same cases. A sweep
selects its cases by their parameters: `rope-bandwidth` has the cases with b 1, h 8 and d 256, and
its x is s; `sweeps.toml` has the sweeps. A line is a median with its 95 % interval at each x.
"""

from __future__ import annotations

import math
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.board.devices import Device
from common.board.ranking import LIMITS, Estimate
from common.paths import PLOTS, ROOT
from common.records.lines import Record

Line = dict[int, Estimate]


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
    """Whether the plot has rates, on a linear axis; times are on a logarithmic axis."""
    log2: bool = True
    """Whether the x axis is logarithmic."""
    default: int = 1
    """The x of a case without this parameter."""

    def has(self, row: Record) -> bool:
        """Return whether the row's case is on the sweep."""
        own = {name: value for name, value in _params(row).items() if name != self.x}
        return row.op == self.op and own == self.where


@dataclass(frozen=True)
class Panel:
    """One pair of axes: the line of each solution, and of each limit measured beside it."""

    title: str
    y_label: str
    lines: Mapping[str, Line]
    limits: Mapping[str, Line]


@dataclass(frozen=True)
class Plot:
    """The plot of one file."""

    sweep: Sweep
    panels: tuple[Panel, ...]
    peers: tuple[str, ...]
    missing: Mapping[str, str]
    """The verdicts of the solutions without a line."""


def _params(row: Record) -> Mapping[str, Any]:
    """Return the case's parameters, with its rows and its width in place of its shape, if any."""
    params = dict(row.params)
    if shape := params.pop("shape", None):
        params |= {"rows": math.prod(shape[:-1]), "width": shape[-1]}
    return params


def _sweeps(rows: Iterable[Record]) -> Iterator[Sweep]:
    """Yield the sweeps of the file, and one for each op whose plotted cases have a shape."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    for name, fields in tomllib.loads(text).items():
        yield Sweep(name, **fields)
    shaped = {row.op: _params(row) for row in rows if row.tier == "plot" and "shape" in row.params}
    for op, params in shaped.items():
        where = {name: params[name] for name in ("dtype", "width")}
        label = f"rows (of {params['width']} elements, {params['dtype']})"
        yield Sweep(f"{op}-rows", op, f"{op}: time over the number of rows", label, "rows", where)


# --- the plots of a device ------------------------------------------------------------------------


def of_device(device: Device) -> list[Plot]:
    """Return the plots of a device's rows, timed and failed, of the known solutions.

    For an op with rows of the tier `plot`, the board's rows of other cases are added.
    """
    drawn = device.results.latest("plot")
    ops = {row.op for row in drawn}
    board = [row for row in device.results.latest() if row.op in ops]
    rows = {row.key: row for row in (*board, *drawn)}
    return plots([row for row in rows.values() if row.solution in device.about])


def files(device: Device) -> dict[str, str]:
    """Return the title of each of the device's plots by the path of its file."""
    folder, drawn = PLOTS.relative_to(ROOT), of_device(device)
    return {f"{folder}/{device.slug}/{plot.sweep.name}.svg": plot.sweep.title for plot in drawn}


def plots(rows: Sequence[Record]) -> list[Plot]:
    """Return the plots with at least one timed row."""
    plots = []
    for sweep in _sweeps(rows):
        own = _of_one_clock([row for row in rows if sweep.has(row)])
        # rows of another sweep may belong to this sweep too
        if any(row.gpu and row.tier == "plot" and sweep.x in _params(row) for row in own):
            panels = tuple(panel for panel in _panels(sweep, own) if panel.lines)
            drawn = {name for panel in panels for name in panel.lines}
            peers = tuple(sorted({row.solution for row in own if row.peer}))
            failed = [row for row in own if row.solution not in drawn and row.verdict != "PASSED"]
            missing = {row.solution: row.verdict for row in reversed(failed)}
            plots.append(Plot(sweep, panels, peers, missing))
    return plots


def _of_one_clock(rows: Sequence[Record]) -> list[Record]:
    """Return the untimed rows and the rows that one version of the clock measured.

    The version is the latest in the rows of the tier `plot`, so that a later board does not remove
    the sweeps.
    """
    timed = [row for row in rows if row.gpu]
    own = [row for row in timed if row.tier == "plot"] or timed
    clock = max((row.clock for row in own), default=0)
    return [row for row in rows if not row.gpu or row.clock == clock]


def _panels(sweep: Sweep, rows: Sequence[Record]) -> Iterator[Panel]:
    """Yield the panel of forward, and for times that of backward alone.

    The limits of backward alone are a share of those of forward + backward.
    """
    forward = {(row.solution, row.case): row for row in rows if row.direction == "forward"}

    def rate(row: Record, name: str) -> Estimate:
        return Estimate.of(row.gpu[name]).rate(row.bytes / 1e3)  # bytes a microsecond, in GB/s

    def time(row: Record, name: str) -> Estimate:
        return Estimate.of(row.gpu[name], 1e-3)

    def alone(row: Record, name: str) -> Estimate | None:
        if name == "solution":
            return Estimate.of(row.gpu["backward"], 1e-3) if "backward" in row.gpu else None
        if not (before := forward.get((row.solution, row.case))):
            return None
        amount = "bytes" if name == "copy" else "flops"
        own = getattr(row, amount)
        return Estimate.of(row.gpu[name], 1e-3 * own / max(own + getattr(before, amount), 1))

    if sweep.rates:
        yield _panel(sweep, "forward", "GB/s", forward.values(), rate)
    else:
        yield _panel(sweep, "forward", "ms", forward.values(), time)
        backward = [row for row in rows if row.direction == "backward"]
        yield _panel(sweep, "backward alone", "ms", backward, alone)


def _panel(
    sweep: Sweep,
    title: str,
    unit: str,
    rows: Iterable[Record],
    value: Callable[[Record, str], Estimate | None],
) -> Panel:
    """Return a panel with the values of the solutions, and the median value of each limit."""
    found: dict[str, dict[str, dict[int, list[Estimate]]]] = {"lines": {}, "limits": {}}
    for row in rows:
        x = int(_params(row).get(sweep.x, sweep.default))
        for name in ("solution", *LIMITS):
            if name in row.gpu and (estimate := value(row, name)):
                kind, of = ("lines", row.solution) if name == "solution" else ("limits", name)
                by_x = found[kind].setdefault(of, defaultdict(list))
                by_x[x].append(estimate)
    middle = {
        kind: {name: {x: _middle(by_x[x]) for x in sorted(by_x)} for name, by_x in lines.items()}
        for kind, lines in found.items()
    }
    return Panel(title, unit, **middle)


def _middle(estimates: Sequence[Estimate]) -> Estimate:
    return sorted(estimates, key=lambda estimate: estimate.value)[len(estimates) // 2]
