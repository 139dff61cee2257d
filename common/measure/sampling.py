"""Rounds of samples of several callables, in random order, until their medians are known."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence

from common.measure.timed_process import Sampler
from common.stats import interval, median

SAMPLES = range(15, 201)
"""The numbers of samples of each timed callable: at least 15, at most 200."""
FEWEST = 3
"""The samples of each timed callable that a clock takes however long they last: their interval goes
from the least to the greatest."""
ROUND_SAMPLES = range(5, 16)
"""The samples of each callable in a round: 5 at first, up to 15 where a round is quick. The
intervals, which cost milliseconds, are checked after each round."""
QUICK_ROUND = 0.2
"""Seconds of a quick round."""
LONGEST = 1.0
"""Seconds after which a clock stops even before the least samples."""
Samples = dict[str, list[float]]
"""Samples in microseconds by timed callable."""
GroupSampler = Callable[[int], Samples]
"""Takes so many samples of each of several timed callables, one after the other."""


def sample_in_rounds(
    samplers: Mapping[str, Sampler],
    seconds: float,
    precision: float,
    grouped: GroupSampler | None = None,
    first: int = ROUND_SAMPLES.start,
) -> Samples:
    """Return the samples of every timed callable; see `over`.

    The timed callables share slow changes of the machine, since every round samples each of them.

    Args:
        samplers: The callables that are asked one by one.
        seconds: The time once every timed callable has its least samples.
        precision: The width of a known median's 95 % interval, as a share of the median.
        grouped: Takes the samples of those that are asked together.
        first: The samples of each in the first round; few where a call may take long.
    """

    def single(name: str) -> GroupSampler:
        return lambda rounds: {name: samplers[name](rounds)}

    everyone = [*map(single, samplers), *([grouped] if grouped else [])]
    samples: Samples = {}
    count, start = first, time.monotonic()
    while True:
        begun = time.monotonic()
        for take in random.sample(everyone, len(everyone)):
            for name, taken in take(count).items():
                samples.setdefault(name, []).extend(taken)
        now = time.monotonic()
        if over(samples, now - start, seconds, precision):
            return samples
        count = next_count(count, now - begun, min(map(len, samples.values())))


def next_count(count: int, seconds: float, done: int) -> int:
    """Return how many samples of each the next round takes: twice as many after a quick one.

    A round takes a few milliseconds however few its samples are.

    Args:
        count: The samples of each in the last round.
        seconds: The seconds that the round took.
        done: The samples of each timed callable so far.
    """
    longer = min(2 * count, ROUND_SAMPLES.stop - 1) if seconds < QUICK_ROUND else count
    return min(longer, SAMPLES.stop - 1 - done)


def over(
    samples: Mapping[str, Sequence[float]], elapsed: float, seconds: float, precision: float
) -> bool:
    """Return whether a clock stops: the medians are known, or its time or its rounds are up.

    For example, it stops after FEWEST samples of calls that take a second each.

    Args:
        samples: The samples so far, by timed callable.
        elapsed: Seconds since the clock started.
        seconds: The time that it may take once every timed callable has its least samples.
        precision: The width of a known median's 95 % interval, as a share of the median.
    """

    def known(each: Sequence[float]) -> bool:
        low, high = interval(each)
        return high - low <= precision * median(each)

    done = min(map(len, samples.values()))
    if done < FEWEST:
        return False
    if elapsed > LONGEST or done >= SAMPLES.stop - 1:
        return True
    return done >= SAMPLES.start and (elapsed > seconds or all(map(known, samples.values())))
