"""Scores, the geometric means of ratios to eager with their intervals, and their places; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common import stats
from common.records.fields import Pair, timing
from common.records.outline import Floats


@dataclass(frozen=True)
class Score:
    """The speed in units of eager's, with its 95 % interval."""

    value: float
    low: float
    high: float


def combined(times: Sequence[Pair]) -> Score:
    """Return the score of these times."""
    (score,) = _scores(np.array([[timing(times=pair)[1:] for pair in times]]))
    return score


def ranked(timings: Floats) -> dict[int, tuple[Score, int]]:
    """Return score and place of those that the latest clock timed in every case, best first.

    Those whose intervals overlap with a leader's share the leader's place; see `stats.leaders`.

    Args:
        timings: By solution and case, the seven numbers of `timing`.
    """
    latest = timings[..., 0].max(initial=0)
    counts = (timings[..., 0] == latest) & ~np.isnan(timings[..., 1])
    whole = np.flatnonzero(counts.all(axis=1)).tolist()
    found = zip(whole, _scores(timings[whole, :, 1:]), strict=True)
    best = dict(sorted(found, key=lambda each: -each[1].value))
    leaders = stats.leaders(list(best.values()))
    return {each: (best[each], leader + 1) for each, leader in zip(best, leaders, strict=True)}


def _scores(times: Floats) -> list[Score]:
    """Return the score of each of several solutions, whose times stand in the last axis.

    The times are independent, so that the variances of the logarithms add. The interval of a median
    need not be symmetric: each side is combined by itself.
    """
    mine, low, high, eager, eager_low, eager_high = np.moveaxis(np.log(times), 2, 0)
    ratio = (eager - mine).mean(axis=1)
    above = _quadrature(eager_high - eager, mine - low)
    below = _quadrature(eager - eager_low, high - mine)
    bounds = np.exp([ratio, ratio - below, ratio + above]).T.tolist()
    return [Score(*each) for each in bounds]


def _quadrature(one: Floats, other: Floats) -> Floats:
    """Return the deviation of each row's mean, from those of the two sides of its cells."""
    found: Floats = np.sqrt((one**2 + other**2).sum(axis=1)) / one.shape[1]
    return found
