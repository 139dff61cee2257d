"""Turns of several contestants, in a new random order each round, until their medians are known."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping

from common.measure import stopping
from common.measure.timed_process import Turn

Samples = dict[str, list[float]]
"""Samples in microseconds by contestant."""
Turns = Callable[[int], Samples]
"""Takes so many samples of each of several contestants, one after the other."""


def take_turns(
    turns: Mapping[str, Turn],
    seconds: float,
    precision: float,
    beside: Turns | None = None,
    first: int = stopping.TURNS.start,
) -> Samples:
    """Return the samples of every contestant; see `stopping.over`.

    The contestants share slow changes of the machine, since each has a turn in every round.

    Args:
        turns: The contestants that are asked one by one.
        seconds: The time once every contestant has its least samples.
        precision: The width of a settled interval, as a share of the median.
        beside: Takes the turns of the contestants that are asked together.
        first: The samples of a turn in the first round; few where a call may take long.
    """
    everyone = [*map(_alone, turns, turns.values()), *([beside] if beside else [])]
    samples: Samples = {}
    turn, start = first, time.monotonic()
    while True:
        begun = time.monotonic()
        for take in random.sample(everyone, len(everyone)):
            for name, taken in take(turn).items():
                samples.setdefault(name, []).extend(taken)
        now = time.monotonic()
        if stopping.over(samples, now - start, seconds, precision):
            return samples
        turn = stopping.next_turn(turn, now - begun, min(map(len, samples.values())))


def _alone(name: str, turn: Turn) -> Turns:
    return lambda rounds: {name: turn(rounds)}
