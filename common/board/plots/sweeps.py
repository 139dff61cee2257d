"""The seeds' plots with everyone on them, worked out from records of the tier `plot`, and of the
board where it has the same cases; see drawing.

A plot has panels, a panel has lines, and a line is a median with its 95 % interval at each x. What
is on the x axis is read from the case's name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from common.board.ranking import CONFIDENCE, LIMITS, REPLICATES
from common.records.runs import Record, Results

MILLI = 1e-3


@dataclass(frozen=True)
class Estimate:
    """A median with its bootstrapped 95 % interval."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Estimate:
        return Estimate(self.value * factor, self.low * factor, self.high * factor)

    def rate(self, amount: float) -> Estimate:
        """So much in that time."""
        return Estimate(amount / self.value, amount / self.high, amount / self.low)


Line = dict[int, Estimate]


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    y_label: str
    lines: Mapping[str, Line]
    """By solution."""
    limits: Mapping[str, Line]
    """By what was measured beside every solution."""


@dataclass(frozen=True)
class Plot:
    """One file. `missing` says who has no line, and why; `log2` is the x axis, linear else. The y
    axis is linear for rates and logarithmic for times."""

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
    """A panel of the host's times: for each solution, one estimate of each kind of call."""

    title: str
    times: Mapping[str, Mapping[str, Estimate]]


@dataclass(frozen=True)
class HostPlot:
    """Who costs the host how much, before the GPU starts."""

    name: str
    op: str
    title: str
    strips: tuple[Strip, ...]
    peers: frozenset[str]
    missing: Mapping[str, str]


@dataclass(frozen=True)
class _Sweep:
    """Cases that differ in one number, the pattern's group."""

    name: str
    op: str
    title: str
    x_label: str
    pattern: str
    rates: bool = False
    log2: bool = True


_TOKENS = r"(\d+)x{}-bfloat16-span"
SWEEPS = (
    _Sweep(
        "rope-bandwidth", "rope", "rope: bandwidth over sequence length",
        "sequence length (b 1, h 8, d 256, float32)", r"sbhd-(\d+)x1x8x256-float32", rates=True,
    ),
    _Sweep(
        "rope-length", "rope", "rope: time over sequence length",
        "sequence length (b 16, h 10, d 512, of which 256 turn, float32)",
        r"sbhd-(\d+)x16x10x512-float32-d2=256", log2=False,
    ),
    _Sweep(
        "masked_linear-tokens", "masked_linear", "masked_linear: time over token count",
        "tokens (1024 to 1024 features, bfloat16, one visual span)", _TOKENS.format("1024x1024"),
    ),
    _Sweep(
        "masked_ffn-tokens", "masked_ffn", "masked_ffn: time over token count",
        "tokens (width 1024, intermediate 2048, bfloat16, one visual span)",
        _TOKENS.format("1024x2048"),
    ),
)  # fmt: skip
HOST_TITLE = "rope: what a call costs the host"
HOST_CALLS = {"no_grad": "forward, no_grad", "forward": "forward", "backward": "forward + backward"}


def rows_of(results: Results, known: Container[str]) -> list[Record]:
    """What is drawn: the timed and failed rows of the solutions that are still there; of an op that
    has any, the board's too, where a case of theirs was not measured for the plots."""
    drawn = results.latest("plot")
    ops = {row.op for row in drawn}
    board = [row for row in results.latest() if row.op in ops]
    rows = {row.key: row for row in (*board, *drawn)}
    return [row for row in rows.values() if row.solution in known]


def files(results: Results, rows: Sequence[Record]) -> dict[str, str]:
    """The plots that the rows have any times for: their files, from the top, and their titles."""
    found = {sweep.name: sweep.title for sweep in SWEEPS if any(_timed(_of(sweep, rows)))}
    if any(_timed(_hosted(rows))):
        found["rope-host"] = HOST_TITLE
    return {f"results/plots/{results.path.stem}/{name}.svg": found[name] for name in found}


def plots(rows: Sequence[Record]) -> list[Plot | HostPlot]:
    """Those that the rows have any times for."""
    swept = [_swept(sweep, _of(sweep, rows)) for sweep in SWEEPS if any(_timed(_of(sweep, rows)))]
    hosted = _hosted(rows)
    return [*swept, *([_host(hosted)] if any(_timed(hosted)) else [])]


def estimate(samples: Sequence[float]) -> Estimate:
    """The same samples give the same interval."""
    values = np.asarray(samples)
    drawn = np.random.default_rng(0).integers(0, len(values), (REPLICATES, len(values)))
    low, high = np.percentile(np.median(values[drawn], axis=1), CONFIDENCE)
    return Estimate(float(np.median(values)), float(low), float(high))


def _of(sweep: _Sweep, rows: Iterable[Record]) -> list[Record]:
    return [row for row in rows if row.op == sweep.op and re.fullmatch(sweep.pattern, row.case)]


def _hosted(rows: Iterable[Record]) -> list[Record]:
    return [row for row in rows if row.op == "rope" and row.ranked_by == "host"]


def _swept(sweep: _Sweep, ours: Sequence[Record]) -> Plot:
    if sweep.rates:
        panels = [_bandwidth(sweep, ours)]
    else:
        panels = [_forward(sweep, ours), _backward(sweep, ours)]
    return Plot(
        name=sweep.name,
        op=sweep.op,
        title=sweep.title,
        x_label=sweep.x_label,
        panels=tuple(panel for panel in panels if panel.lines),
        peers=frozenset(row.solution for row in ours if row.peer),
        missing=_missing(ours, {name for panel in panels for name in panel.lines}),
        log2=sweep.log2,
        rates=sweep.rates,
    )


def _bandwidth(sweep: _Sweep, rows: Iterable[Record]) -> Panel:
    lines: dict[str, Line] = defaultdict(dict)
    copies: dict[int, list[Estimate]] = defaultdict(list)
    for row in _timed(rows, "forward"):
        x, amount = _x(sweep, row), row.bytes / 1e3  # bytes a microsecond, in GB/s
        lines[row.solution][x] = estimate(row.gpu["solution"]).rate(amount)
        if "copy" in row.gpu:
            copies[x].append(estimate(row.gpu["copy"]).rate(amount))
    return Panel("forward", "GB/s", lines, {"copy": _middle(copies)} if copies else {})


def _forward(sweep: _Sweep, rows: Iterable[Record]) -> Panel:
    lines: dict[str, Line] = defaultdict(dict)
    limits: dict[str, dict[int, list[Estimate]]] = defaultdict(lambda: defaultdict(list))
    for row in _timed(rows, "forward"):
        x = _x(sweep, row)
        lines[row.solution][x] = estimate(row.gpu["solution"]).scaled(MILLI)
        for name in LIMITS:
            if name in row.gpu:
                limits[name][x].append(estimate(row.gpu[name]).scaled(MILLI))
    return Panel("forward", "ms", lines, {name: _middle(each) for name, each in limits.items()})


def _backward(sweep: _Sweep, rows: Sequence[Record]) -> Panel:
    """Backward alone; its limits are its part of those of forward with backward."""
    forward = {(row.solution, row.case): row for row in rows if row.direction == "forward"}
    lines: dict[str, Line] = defaultdict(dict)
    limits: dict[str, dict[int, list[Estimate]]] = defaultdict(lambda: defaultdict(list))
    for row in _timed(rows, "backward"):
        x, before = _x(sweep, row), forward.get((row.solution, row.case))
        if "backward" in row.gpu:
            lines[row.solution][x] = estimate(row.gpu["backward"]).scaled(MILLI)
        if before is None:
            continue
        parts = {
            "copy": row.bytes / (row.bytes + before.bytes),
            "dense": row.flops / max(row.flops + before.flops, 1),
        }
        for name, part in parts.items():
            if name in row.gpu:
                limits[name][x].append(estimate(row.gpu[name]).scaled(MILLI * part))
    medians = {name: _middle(each) for name, each in limits.items()}
    return Panel("backward alone", "ms", lines, medians)


def _host(rows: Sequence[Record]) -> HostPlot:
    strips = []
    for case in dict.fromkeys(row.case for row in rows):
        times: dict[str, dict[str, Estimate]] = defaultdict(dict)
        for row in rows:
            if row.case == case and row.host:
                times[row.solution][row.direction] = estimate(row.host["solution"])
                if "no_grad" in row.host:
                    times[row.solution]["no_grad"] = estimate(row.host["no_grad"])
        if times:
            strips.append(Strip(case, times))
    return HostPlot(
        name="rope-host",
        op="rope",
        title=HOST_TITLE,
        strips=tuple(strips),
        peers=frozenset(row.solution for row in rows if row.peer),
        missing=_missing(rows, {name for strip in strips for name in strip.times}),
    )


def _timed(rows: Iterable[Record], direction: str | None = None) -> list[Record]:
    return [row for row in rows if direction in (None, row.direction) and row.gpu]


def _x(sweep: _Sweep, row: Record) -> int:
    match = re.fullmatch(sweep.pattern, row.case)
    assert match
    return int(match.group(1))


def _middle(measured: Mapping[int, Sequence[Estimate]]) -> Line:
    """A limit was measured beside each solution: the one in the middle."""
    return {
        x: sorted(found, key=lambda each: each.value)[len(found) // 2]
        for x, found in sorted(measured.items())
    }


def _missing(rows: Iterable[Record], drawn: Iterable[str]) -> dict[str, str]:
    """The first verdict of whoever was measured and has no line."""
    drawn = set(drawn)
    missing: dict[str, str] = {}
    for row in rows:
        if row.solution not in drawn and row.verdict != "PASSED":
            missing.setdefault(row.solution, row.verdict)
    return missing
