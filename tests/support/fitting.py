"""The fit of the model's constants to the times that one GPU measured.

The error of some times is the mean of |log(modelled / measured)|. Constants are made larger or
smaller by a factor, one after the other, as long as that lessens the error; the factors become ever
smaller. HELD_OUT is of a GPU that decides no constant.
"""

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from common import paths, solutions, stats
from common.board import model
from common.board.ranking import ranked_times
from common.engines import counting
from common.peaks import PEAKS, Peak
from common.records import runs
from common.records.lines import Counted, Record

Key = tuple[str, str, str, str]  # `Record.key`
FITTED, HELD_OUT = "nvidia-h200", "nvidia-h100-80gb-hbm3"
LAST = "20261123T101555.328590Z-d8d6a6e5d0e1.jsonl"
"""The last record that the constants are fitted to; a later one decides no constant."""
DEVICES = {FITTED: PEAKS["NVIDIA H200"], HELD_OUT: PEAKS["NVIDIA H100 80GB HBM3"]}
"""The GPUs by the folders of their committed records."""
WITHOUT = {"COPY": 1.0, "PROGRAMS": math.inf, "WAIT": 0.0, "PRODUCTS": 1.0, "STEP": 0.0,
           "HOST_OPERATOR": 1.0, "HOST_LAUNCH": 1.0, "HOST_BACKWARD": 1.0}  # fmt: skip
"""The fitted constants, each with the value at which it changes nothing, or little."""
FACTORS = 1.3, 1.1, 1.03, 1.01
LIMITS = {"copy": "copies", "dense": "dense products"}
HOST, OTHER = "the host's times", "kernels in another form than counted"
OTHER_FORMS = tuple(
    f"house/{op}{variant}" for op in ("masked_linear", "masked_ffn") for variant in ("", "_fast")
)
"""The solutions whose kernels are timed in another form than they were counted in: with descriptors
they have other tiles on the fitted GPU. The fit leaves them out."""


class ModelledRow(NamedTuple):
    """A row's measured and modelled times, in microseconds by the clock that ranks the row."""

    row: Record
    measured: float
    modelled: float
    kernels: int
    """The number of Triton launches of the call."""


class Time(NamedTuple):
    """A measured time and a function that returns the modelled one, in microseconds."""

    of: str
    measured: float
    modelled: Callable[[], float]


def counted() -> dict[Key, Counted]:
    """Return the counts, by key, of whom whole runs timed; torch.compile, for GPUs, is left out."""
    timed = {row.solution for device in DEVICES for row in rows_of(device)}
    everyone = [
        each for each in solutions.everyone()
        if each.name in timed and each.handle != "torch_compile"
    ]  # fmt: skip
    return {line.key: line for line in counting.counts(everyone)}


def rows_of(device: str, last: str = "") -> list[Record]:
    """Return the latest rows of a device's whole runs.

    A run over some solutions alone may be of another host, whose host times are no order's. `last`
    is the name of the last record that counts; all count by default.
    """
    files = runs.files(paths.RESULTS / device)
    results = runs.read(paths.RESULTS / device, [p for p in files if not last or p.name <= last])
    whole = {run.run for run in results.runs if run.selection.only is None}
    return replace(results, rows=[row for row in results.rows if row.run in whole]).latest()


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's rank correlation: ties share their mean rank; NaN if all are ties."""
    ranks = []
    for values in (first, second):
        order = np.sort(values)
        below, up_to = (np.searchsorted(order, values, side) for side in ("left", "right"))
        ranks.append(below + up_to)
    if any(len(set(each)) < 2 for each in ranks):
        return math.nan
    return float(np.corrcoef(*ranks)[0, 1])


def time_of(line: Counted, gpu: Peak) -> float:
    """Return the modelled microseconds, by the clock that ranks the case."""
    if line.ranked_by == "host":
        return model.host_time(line)
    return model.gpu_time(line.steps, gpu)


def pairs(device: str, lines: Mapping[Key, Counted], last: str = "") -> list[ModelledRow]:
    """Return both times of each row, of earlier sources too; `last` is that of `rows_of`."""
    rows = rows_of(device, last)
    names = {solution.name for solution in solutions.discover()}
    board = {key[:2] for key in lines}  # a record may have further cases, of an earlier board
    timed = {row.key for row in rows if row.verdict == "PASSED" and row.solution in names}
    timed = {key for key in timed if key[:2] in board}
    assert not timed - lines.keys(), f"not counted: {sorted(timed - lines.keys())}"
    return [
        ModelledRow(
            row, times["solution"].value, time_of(line, DEVICES[device]), len(line.launches)
        )
        for row in rows
        if (times := ranked_times(row)) and row.verdict == "PASSED"
        if (line := lines.get(row.key)) and line.ranked_by == row.ranked_by
    ]


def ranked_together(found: Iterable[ModelledRow]) -> list[ModelledRow]:
    """Return the rows that correlations use: contributors' kernels in cases ranked by GPU time."""
    return [p for p in found if p.kernels and not p.row.peer and p.row.ranked_by == "gpu"]


def correlations(
    found: Iterable[ModelledRow], by: Callable[[ModelledRow], Any]
) -> dict[Any, float]:
    """Return the rank correlation of modelled and measured times in each group of rows.

    Tied measured times share a rank. As on the board, a time ties with the fastest time of its
    group if their intervals overlap.
    """
    groups: dict[Any, list[ModelledRow]] = {}
    for pair in ranked_together(found):
        groups.setdefault(by(pair), []).append(pair)
    correlations = {}
    for group, members in groups.items():
        ordered = sorted(members, key=lambda pair: pair.measured)
        times = [ranked_times(pair.row)["solution"] for pair in ordered]
        leaders = stats.leaders([(time.low, time.high) for time in times])
        correlations[group] = rank_correlation([pair.modelled for pair in ordered], leaders)
    return correlations


def times(device: str, lines: Mapping[Key, Counted]) -> list[Time]:
    """Return the times of kernels and of eager, and of a copy and a dense product in each case."""
    gpu = DEVICES[device]
    times: dict[tuple[str, ...], Time] = {}
    for pair in pairs(device, lines, LAST if device == FITTED else ""):
        row, line = pair.row, lines[pair.row.key]
        if pair.kernels or row.solution.startswith("eager/"):
            modelled_time = functools.partial(time_of, line, gpu)
            times[row.key] = Time(_kind(pair), pair.measured, modelled_time)
        if row.ranked_by == "gpu":
            for limit, of in LIMITS.items():
                if limit in row.gpu:
                    modelled_limit = functools.partial(limit_of, limit, line, gpu)
                    times[(*row.key[:3], limit)] = Time(of, row.gpu[limit].value, modelled_limit)
    return list(times.values())


def limit_of(name: str, line: Counted, gpu: Peak) -> float:
    """Return the modelled microseconds of a copy or of dense products."""
    return model.limits(line, gpu)[name]


def _kind(pair: ModelledRow) -> str:
    if pair.row.ranked_by == "host":
        return HOST
    if not pair.kernels:
        return "eager"
    return OTHER if pair.row.solution in OTHER_FORMS else "kernels"


def together(constant: str, found: Iterable[Time]) -> tuple[list[str], list[Time]]:
    """Return the constants that are fitted together with this one, and the times of their fit."""
    host = constant.startswith("HOST_")
    names = [name for name in WITHOUT if name.startswith("HOST_") == host]
    return names, [time for time in found if time.of != OTHER and (time.of == HOST) == host]


def error(found: Iterable[Time]) -> float:
    """Return how far off the times are: 0.1 for a tenth of them."""
    return statistics.fmean(abs(math.log(time.modelled() / time.measured)) for time in found)


def fit(names: Sequence[str], found: Sequence[Time]) -> float:
    """Move these constants to where the times are least off; return the error that is left."""
    left = error(found)
    for factor in FACTORS:
        before = math.inf
        while left < 0.9999 * before:  # a constant may drift on for ever by less
            before = left
            for name, by in itertools.product(names, (factor, 1 / factor)):
                value = getattr(model, name)
                setattr(model, name, value * by)
                if (moved := error(found)) < left:
                    left = moved
                else:
                    setattr(model, name, value)
    return left
