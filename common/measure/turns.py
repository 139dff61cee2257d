"""Turns of several contestants, in a new random order each round, until their medians are known."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping

from common.measure import stopping
from common.measure.timed_process import Turn

Samples = dict[str, list[float]]
"""Samples in microseconds by contestant."""


def take_turns(turns: Mapping[str, Turn], seconds: float, precision: float) -> Samples:
    """Return the samples of every contestant; see `stopping.over` for the arguments.

    The contestants share slow changes of the machine, since each has a turn in every round.
    """
    samples: Samples = {name: [] for name in turns}
    start = time.monotonic()
    while not stopping.over(samples, time.monotonic() - start, seconds, precision):
        for name in random.sample(list(turns), len(turns)):
            samples[name] += turns[name](stopping.TURN)
    return samples
