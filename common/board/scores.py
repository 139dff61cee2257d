"""Scores, the geometric means of ratios to eager with their intervals, and their places; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common import stats
from common.records.fields import Summary

Pair = tuple[Summary, Summary]
"""The solution's time and eager's."""
Logs = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Score:
    """The speed in units of eager's, with its 95 % interval."""

    value: float
    low: float
    high: float


def combined(times: Sequence[Pair]) -> Score:
    """Return the score of these times."""
    (score,) = scores([times])
    return score


def scores(found: Sequence[Sequence[Pair]]) -> list[Score]:
    """Return the score of each of several solutions, all of which have the same number of times.

    The times are independent, so that the variances of the logarithms add. The interval of a median
    need not be symmetric: each side is combined by itself.
    """
    if not found:
        return []
    logs = np.log([[_values(pair) for pair in times] for times in found])
    mine, low, high, eager, eager_low, eager_high = np.moveaxis(logs, 2, 0)
    ratio = (eager - mine).mean(axis=1)
    above = _quadrature(eager_high - eager, mine - low)
    below = _quadrature(eager - eager_low, high - mine)
    bounds = np.exp([ratio, ratio - below, ratio + above]).T.tolist()
    return [Score(*each) for each in bounds]


def _values(pair: Pair) -> tuple[float, ...]:
    mine, eager = pair
    return mine.median, mine.low, mine.high, eager.median, eager.low, eager.high


def _quadrature(one: Logs, other: Logs) -> Logs:
    """Return the deviation of each row's mean, from those of the two sides of its cells."""
    found: Logs = np.sqrt((one**2 + other**2).sum(axis=1)) / one.shape[1]
    return found


def numbers(scores: Sequence[Score]) -> list[int]:
    """Return the places of scores, best first, counted from 1."""
    return [leader + 1 for leader in stats.leaders(scores)]
