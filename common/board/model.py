"""Model the time of counted work on a named GPU; `docs/model.md` justifies each term.

The constants are fitted on the committed record of the H200 alone (`tests/support/fitting.py`).
They are shares of the datasheet's rates and of the clock, so that they carry over to another GPU of
the same architecture. No constant depends on a solution or a case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.peaks import PEAKS, Peak
from common.records.lines import Launch, Operator

# --- fitted on the H200 ---------------------------------------------------------------------------

COPY = 0.906
"""The share of the memory's bandwidth that a copy reaches."""
FROM_L2 = 41.6
"""Bytes that a multiprocessor reads from L2 per clock."""
PROGRAMS = 0.918
"""Programs that the GPU starts per clock."""
WAIT = 0.364e-6
"""The latency of a load from memory, in seconds."""
PRODUCTS = 0.732
"""The share of the tensor cores' rate that torch's and Triton's products reach."""
ELEMENTS = 1.75
"""Elements that a multiprocessor writes per clock in an operator with `plain=False`."""
STEP = 6.31e-6
"""Seconds between the ends of two empty launches."""
RAMP = 0.206
"""Memory idles at a launch's start and end for the time of this share of one wave's bytes."""
SHARPNESS = 4.33
"""The p of the p-norm that combines a launch's overlapping parts; infinity gives the maximum."""

HOST_OPERATOR, HOST_LAUNCH, HOST_BACKWARD = 11.5, 35.3, 43.5
"""Host microseconds of an operator, of a Triton launch, and of autograd."""

# --- from the datasheets --------------------------------------------------------------------------

FROM_L1 = 128
"""Bytes that a multiprocessor reads from L1 per clock."""
WARPS, BLOCKS, REGISTERS, SHARED = 64, 32, 65_536, 227 << 10
"""The limits of a multiprocessor: warps, programs, registers and bytes of shared memory."""
THREADS = 32
"""Threads of a warp."""
SIZES = {"bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4, "bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of an element, by its Triton or torch type."""
INDEX = 8
"""Bytes of an element of an operator on integers."""


@dataclass(frozen=True)
class Gpu:
    """The model's parameters of a GPU."""

    name: str
    multiprocessors: int
    hertz: float
    """The clock for which the datasheet states its FLOP rate."""

    @property
    def peak(self) -> Peak:
        """The datasheet's rates."""
        return PEAKS[self.name]

    @property
    def bandwidth(self) -> float:
        """The bytes per second of a copy."""
        return COPY * self.peak.bytes_per_second

    def per_second(self, amount: float) -> float:
        """Return all multiprocessors' rate per second from one multiprocessor's rate per clock."""
        return amount * self.multiprocessors * self.hertz

    def products(self, dtype: str) -> float:
        """Return the FLOP/s of matrix products with operands of this type."""
        rates = self.peak.flops_per_second
        if dtype in ("fp32", "float32"):
            return PRODUCTS * rates["float32"]
        return PRODUCTS * rates["bfloat16"] / (2 if dtype == "tf32" else 1)


GPUS: Mapping[str, Gpu] = {
    name: Gpu(name, 132, 1.83e9) for name in ("NVIDIA H200", "NVIDIA H100 80GB HBM3")
}
"""The GPUs with the architecture for which work is counted."""
DEFAULT = "NVIDIA H200"


def gpu_time(steps: Sequence[Launch | Operator], gpu: Gpu) -> float:
    """Return the GPU microseconds of a call."""
    return 1e6 * sum(STEP + _time(step, gpu) for step in steps)


def host_time(steps: Sequence[Launch | Operator], backward: bool) -> float:
    """Return the host microseconds until the call returns."""
    launches = sum(isinstance(step, Launch) for step in steps)
    operators = len(steps) - launches
    return HOST_OPERATOR * operators + HOST_LAUNCH * launches + HOST_BACKWARD * backward


def copy_time(nbytes: int, gpu: Gpu) -> float:
    """Return the microseconds of a copy; `nbytes` counts the bytes read and written."""
    return 1e6 * (STEP + nbytes / gpu.bandwidth)


def dense_time(flops: int, dtype: str, gpu: Gpu) -> float:
    """Return the microseconds of dense products of `flops` operations."""
    return 1e6 * (STEP + flops / gpu.products(dtype))


def _overlapped(*parts: float) -> float:
    """Return the time of overlapping parts: slightly more than the longest part's."""
    longest = max(parts)
    return (
        longest * sum((part / longest) ** SHARPNESS for part in parts) ** (1 / SHARPNESS)
        if longest
        else 0
    )


def _time(step: Launch | Operator, gpu: Gpu) -> float:
    if isinstance(step, Launch):
        return parts(step, gpu).total if step.programs else 0.0
    memory = (step.read + step.written) / gpu.bandwidth
    if step.flops:
        return _overlapped(step.flops / gpu.products(step.dtype), memory)
    if step.plain:
        return memory
    elements = step.written / SIZES.get(step.dtype, INDEX)
    return max(memory, elements / gpu.per_second(ELEMENTS))


@dataclass(frozen=True)
class Parts:
    """The seconds of each part of a launch; all parts but `l1` and `ramp` overlap."""

    memory: float
    """The bytes that reach memory, over the memory's bandwidth."""
    l2: float
    """The bytes that several programs read, over L2's bandwidth."""
    l1: float
    """The bytes that a program reads again, over L1's bandwidth."""
    start: float
    """The programs, over their start rate."""
    wait: float
    """The latency and the transfer of loads that depend on one another."""
    products: float
    ramp: float

    @property
    def total(self) -> float:
        """The seconds of the launch."""
        overlapping = _overlapped(self.memory, self.l2, self.start, self.wait, self.products)
        return overlapping + self.l1 + self.ramp


def parts(launch: Launch, gpu: Gpu) -> Parts:
    """Return the seconds of each part of a launch."""
    programs, processors = launch.programs, gpu.multiprocessors
    # a program runs on one multiprocessor: on 132 of them, 288 programs take as long as 396
    uneven = math.ceil(programs / processors) * processors / programs
    memory_bytes = launch.read + launch.written
    l2_bytes = max(launch.fetched - launch.read, 0) + max(launch.sent - launch.written, 0)
    l1_bytes = max(launch.requested - launch.fetched, 0)
    at_once = resident(launch)
    waves = max(1.0, programs / (processors * at_once))
    program_seconds = memory_bytes / programs / gpu.bandwidth
    waits = launch.rounds if launch.flops else max(launch.longest_rounds, launch.rounds * waves)
    transfer = 0.0 if launch.flops else waves * program_seconds * processors
    heaviest = launch.longest * processors / programs
    products = sum(flops / gpu.products(dtype) for dtype, flops in launch.flops.items())
    return Parts(
        memory=memory_bytes / gpu.bandwidth * uneven,
        l2=l2_bytes / gpu.per_second(FROM_L2) * uneven,
        l1=l1_bytes / gpu.per_second(FROM_L1),
        start=programs / (PROGRAMS * gpu.hertz),
        wait=WAIT * waits + transfer,
        products=products * max(uneven, heaviest),
        ramp=RAMP * program_seconds * min(at_once * processors, programs),
    )


def resident(launch: Launch) -> int:
    """Return the programs that one multiprocessor runs at a time.

    The largest product gives an estimate of registers and shared memory. A compiled kernel's own
    figures do not make the times more accurate; see `docs/model.md`.
    """
    threads = launch.warps * THREADS
    programs = min(BLOCKS, WARPS // launch.warps, REGISTERS // (threads * _registers(launch)))
    if shared := shared_bytes(launch):
        programs = min(programs, SHARED // shared)
    return max(programs, 1)


OWN_REGISTERS, MOST_REGISTERS = 60, 255
"""A thread's registers apart from its accumulators, and the limit of registers of a thread."""


def _registers(launch: Launch) -> int:
    m, n, _ = launch.tile
    accumulators = m * n // (launch.warps * THREADS)
    return min(accumulators + OWN_REGISTERS, MOST_REGISTERS) if accumulators else 1


def shared_bytes(launch: Launch) -> int:
    """Return the bytes of shared memory for the tiles that the pipeline loads ahead."""
    m, n, k = launch.tile
    size = max((SIZES.get(dtype, 1) for dtype in launch.flops), default=0)
    return launch.stages * (m + n) * k * size
