"""Devices of one kind beside each other, by eager's time of the same case on each.

A GPU that throttles or has worse cooling than its neighbours makes no ratio wrong, since a row's
baseline is timed on the same device; but its microseconds are not the kind's.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from itertools import chain

from common import ops
from common.grading.memory import Footprint
from common.grading.sweep import Sweep, eager_of
from common.measure.rows import Measured, Measurement

OP = "rotate_half"
"""The op of the case: its memory-bound case takes a second."""
APART = 0.05
"""The distance from the median, as a share of it, from which on a device is an outlier."""


def pace(sweep: Sweep) -> float | None:
    """Return eager's microseconds on the case; None where it does not fit or nothing is timed."""
    op = ops.load(OP)
    fitting = (
        case
        for case in op.board(sweep.device)
        if case.ranked_by == "gpu" and Footprint.by(op, case).fits(sweep.room.memory.budget)
    )
    eager, case = eager_of(op), next(fitting, None)
    if case is None or sweep.device != "cuda":
        return None
    digests = {eager: ("", "")}
    found = Measurement(sweep, digests, patience=0.3).measure([eager], [(op, [case])])
    rows = chain.from_iterable(each for each in found if isinstance(each, list))
    return next((_eager(each) for each in rows if each.row.gpu), None)


def _eager(measured: Measured) -> float:
    return measured.row.gpu["eager"].median


def outliers(found: Mapping[str, float]) -> dict[str, float]:
    """Return each outlier's time over the median of all, by device.

    Args:
        found: The microseconds of each device of one kind, by its UUID.
    """
    if not found:
        return {}
    middle = statistics.median_low(found.values())  # of two, the slower one is apart
    return {
        device: round(each / middle, 2)
        for device, each in found.items()
        if abs(each / middle - 1) > APART
    }
