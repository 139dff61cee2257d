"""Model the time of counted work on a named GPU; `docs/model.md` justifies each term.

The constants are fitted on the committed record of the H200 alone (`tests/support/fitting.py`).
They are shares of the datasheet's rates and of the clock, so that they carry over to another GPU of
the same architecture. No constant depends on a solution or a case.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from common.peaks import Peak
from common.records.lines import Counted, Launch, Operator

DEFAULT = "NVIDIA H200"
MULTIPROCESSORS, HERTZ = 132, 1.83e9
"""Of an H200 and an H100; the clock is that for which the datasheet states the FLOP rate."""

ERROR = {"gpu": 0.1, "host": 0.2}
"""By how much a kernel's time and the host's are off on average, on the H200: `docs/model.md`."""

# --- fitted on the H200 ---------------------------------------------------------------------------

COPY = 0.897
"""The share of the memory's bandwidth that a copy reaches."""
PROGRAMS = 0.918
"""Programs that the GPU starts per clock."""
WAIT = 0.381e-6
"""The latency of a load from memory, in seconds."""
PRODUCTS = 0.725
"""The share of the tensor cores' rate that torch's and Triton's products reach."""
STEP = 8.5e-06
"""Seconds between the ends of two empty launches."""

HOST_OPERATOR, HOST_LAUNCH, HOST_BACKWARD = 11.5, 35.3, 43.5
"""Host microseconds of an operator, of a Triton launch, and of autograd."""


def gpu_time(steps: Sequence[Launch | Operator], gpu: Peak) -> float:
    """Return the GPU microseconds of a call."""
    return 1e6 * sum(STEP + _time(step, gpu) for step in steps)


def host_time(counted: Counted) -> float:
    """Return the host microseconds until the call returns."""
    steps = HOST_OPERATOR * len(counted.operators) + HOST_LAUNCH * len(counted.launches)
    return steps + HOST_BACKWARD * (counted.direction == "backward")


def limits(counted: Counted, gpu: Peak) -> dict[str, float]:
    """Return the microseconds of a `copy` of the least bytes and of the `dense` products."""
    copy, dtype = Operator(operator="copy", read=counted.bytes, written=0), counted.params["dtype"]
    dense = Operator(operator="mm", read=0, written=0, flops=counted.flops, dtype=dtype)
    return {"copy": gpu_time([copy], gpu), "dense": gpu_time([dense], gpu)}


def _rate(dtype: str, gpu: Peak) -> float:
    """Return the FLOP/s of matrix products with operands of this type."""
    full = dtype in ("fp32", "float32")
    rate = gpu.flops_per_second["float32" if full else "bfloat16"]
    return PRODUCTS * rate / (2 if dtype == "tf32" else 1)


def _time(step: Launch | Operator, gpu: Peak) -> float:
    """Return the seconds of a step: those of its slowest part, since all parts overlap."""
    memory = (step.read + step.written) / (COPY * gpu.bytes_per_second)
    if isinstance(step, Operator):
        return max(memory, step.flops / _rate(step.dtype, gpu))
    # a program runs on one multiprocessor: on 132 of them, 288 programs take as long as 396
    programs = step.programs
    uneven = math.ceil(programs / MULTIPROCESSORS) * MULTIPROCESSORS / programs
    products = sum(flops / _rate(dtype, gpu) for dtype, flops in step.flops.items())
    start = programs / (PROGRAMS * HERTZ)
    return max(uneven * memory, uneven * products, start, WAIT * step.rounds)
