"""Turns of several contestants, in a new random order each round, until their medians are known."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence

from common.measure.timed_process import Turn
from common.stats import interval, median

ROUNDS = range(15, 201)
"""The numbers of samples of each contestant: at least 15, at most 200."""
FEWEST = 3
"""The samples of each contestant that a clock takes however long they last: their interval goes
from the least to the greatest."""
TURNS = range(5, 16)
"""The samples of a turn: 5 in the first round, and up to 15 where a round is quick. The intervals,
which cost milliseconds, are checked after each round."""
ROUND = 0.2
"""Seconds of a quick round."""
LONGEST = 1.0
"""Seconds after which a clock stops even before the least samples."""
Samples = dict[str, list[float]]
"""Samples in microseconds by contestant."""
Turns = Callable[[int], Samples]
"""Takes so many samples of each of several contestants, one after the other."""


def take_turns(
    turns: Mapping[str, Turn],
    seconds: float,
    precision: float,
    beside: Turns | None = None,
    first: int = TURNS.start,
) -> Samples:
    """Return the samples of every contestant; see `over`.

    The contestants share slow changes of the machine, since each has a turn in every round.

    Args:
        turns: The contestants that are asked one by one.
        seconds: The time once every contestant has its least samples.
        precision: The width of a known median's 95 % interval, as a share of the median.
        beside: Takes the turns of the contestants that are asked together.
        first: The samples of a turn in the first round; few where a call may take long.
    """

    def alone(name: str) -> Turns:
        return lambda rounds: {name: turns[name](rounds)}

    everyone = [*map(alone, turns), *([beside] if beside else [])]
    samples: Samples = {}
    turn, start = first, time.monotonic()
    while True:
        begun = time.monotonic()
        for take in random.sample(everyone, len(everyone)):
            for name, taken in take(turn).items():
                samples.setdefault(name, []).extend(taken)
        now = time.monotonic()
        if over(samples, now - start, seconds, precision):
            return samples
        turn = next_turn(turn, now - begun, min(map(len, samples.values())))


def next_turn(turn: int, seconds: float, done: int) -> int:
    """Return the samples of a turn in the next round: twice as many after a quick one.

    A turn takes a few milliseconds however few its samples are.

    Args:
        turn: The samples of a turn in the last round.
        seconds: The seconds that the round took.
        done: The samples of each contestant so far.
    """
    longer = min(2 * turn, TURNS.stop - 1) if seconds < ROUND else turn
    return min(longer, ROUNDS.stop - 1 - done)


def over(
    samples: Mapping[str, Sequence[float]], elapsed: float, seconds: float, precision: float
) -> bool:
    """Return whether a clock stops: the medians are known, or its time or its rounds are up.

    For example, it stops after FEWEST samples of calls that take a second each.

    Args:
        samples: The samples so far, by contestant.
        elapsed: Seconds since the clock started.
        seconds: The time that it may take once every contestant has its least samples.
        precision: The width of a known median's 95 % interval, as a share of the median.
    """

    def known(each: Sequence[float]) -> bool:
        low, high = interval(each)
        return high - low <= precision * median(each)

    done = min(map(len, samples.values()))
    if done < FEWEST:
        return False
    if elapsed > LONGEST or done >= ROUNDS.stop - 1:
        return True
    return done >= ROUNDS.start and (elapsed > seconds or all(map(known, samples.values())))
