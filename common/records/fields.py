"""The parts that the lines of a run have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypedDict

import msgspec

from common import stats
from common.spec import Tier

SCHEMA: Literal[2] = 2
POWER_CAP = "power cap"


class Summary(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A median with its 95 % interval, in microseconds; `[10.2, 10.1, 10.4]` in the file."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Summary:
        """Return the summary of samples in microseconds, its bounds to the nanosecond."""
        low, high = stats.interval(samples)
        return cls(stats.median(samples), round(low, 3), round(high, 3))


Pair = tuple[Summary, Summary]
"""The solution's time and eager's."""
Timing = tuple[float, ...]
"""The clock's version; and the median, low and high of the solution and of eager."""
NO_TIMES = (math.nan,) * 6


def timing(clock: int = 0, times: Pair | None = None) -> Timing:
    """Return what counts of a row for a ranking, in seven numbers.

    Args:
        clock: The version of the clock; 0 where nothing was timed.
        times: None where the solution did not pass.
    """
    if times is None:
        return (clock, *NO_TIMES)
    mine, eager = times
    return clock, mine.median, mine.low, mine.high, eager.median, eager.low, eager.high


Influences = dict[str, list[str]]
"""What touched a row's times but for the solution, by the clock that took them, `gpu` or `host`."""


class State(TypedDict, total=False):
    """The device while a case was timed: lowest and highest readings; see `measure/device.py`."""

    sm_mhz: list[int]
    memory_mhz: list[int]
    celsius: list[int]
    throttled: list[str]
    others: int
    slow_probes: int
    """Turns of eager and the limits beside which a probe stayed slow; see `measure/baseline.py`."""
    slow_host_probes: int
    """The same by the host's clock; earlier records count both together."""
    elsewhere: str
    """The device of the case's first timed row in the run, where it is another than this row's."""


class Line(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    gc=False,
    tag_field="kind",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """One line of a run's file; `run` is the run's id."""

    schema: Literal[2]
    run: str


class Selection(
    msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True
):
    """The options that chose what a run measures; None where all were chosen."""

    op: str | None = None
    only: str | None = None
    tier: Tier = "board"
