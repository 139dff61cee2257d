"""The time that a named GPU would take, from counted work; `docs/model.md` argues each term.

The constants were fitted on the committed record of the H200 alone (`tests/support/fitting.py`), as
shares of what the GPU's datasheet and clock allow, so that they carry over to another GPU of its
kind. None is of a solution or of a case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.peaks import PEAKS, Peak
from common.records.lines import Launch, Operator

# --- fitted on the H200 ---------------------------------------------------------------------------

COPY = 0.909
"""The share of the memory's bandwidth that a copy reaches."""
FROM_L2 = 37.0
"""Bytes that a multiprocessor gets from L2 in a clock."""
PROGRAMS = 0.918
"""Programs that the GPU starts in a clock."""
WAIT = 0.367e-6
"""Seconds until a load from memory is there."""
PRODUCTS = 0.747
"""The share of the tensor cores' rate that products reach, torch's and Triton's."""
ELEMENTS = 1.74
"""Elements that a multiprocessor writes in a clock in an operator that is not plain."""
STEP = 6.44e-6
"""Seconds between the ends of two launches that have nothing to do."""
RAMP = 0.21
"""The share of the bytes of one wave of programs during which memory idles at start and end."""
SHARPNESS = 4.65
"""The norm by which the parts of a launch that overlap make one time: infinity is the maximum."""

HOST_OPERATOR, HOST_LAUNCH, HOST_BACKWARD = 11.5, 35.3, 43.5
"""Microseconds of the host: for an operator, a launch of Triton's, and autograd."""

# --- from the datasheets --------------------------------------------------------------------------

FROM_L1 = 128
"""Bytes that a multiprocessor gets from L1 in a clock."""
WARPS, BLOCKS, REGISTERS, SHARED = 64, 32, 65_536, 227 << 10
"""The most of a multiprocessor at a time: warps, programs, registers and bytes of shared memory."""
THREADS = 32
"""Of a warp."""
SIZES = {"bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4, "bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of an element, by its type in Triton or in torch."""
INDEX = 8
"""Bytes of an element of an operator on integers."""


@dataclass(frozen=True)
class Gpu:
    """A GPU by name, with what the model needs of it."""

    name: str
    multiprocessors: int
    hertz: float
    """The clock at which the datasheet's rate of products holds."""

    @property
    def peak(self) -> Peak:
        """The datasheet's rates."""
        return PEAKS[self.name]

    @property
    def bandwidth(self) -> float:
        """Bytes a second of a copy."""
        return COPY * self.peak.bytes_per_second

    def each_clock(self, amount: float) -> float:
        """Return the amount a second of all multiprocessors, from that of one in a clock."""
        return amount * self.multiprocessors * self.hertz

    def products(self, kind: str) -> float:
        """Return the FLOPs a second of products of operands of this type."""
        rates = self.peak.flops_per_second
        if kind in ("fp32", "float32"):
            return PRODUCTS * rates["float32"]
        return PRODUCTS * rates["bfloat16"] / (2 if kind == "tf32" else 1)


GPUS: Mapping[str, Gpu] = {
    name: Gpu(name, 132, 1.83e9) for name in ("NVIDIA H200", "NVIDIA H100 80GB HBM3")
}
"""The GPUs of the target that work is counted for."""
DEFAULT = "NVIDIA H200"


def gpu_time(steps: Sequence[Launch | Operator], gpu: Gpu) -> float:
    """Return the microseconds that the GPU takes for a call."""
    return 1e6 * sum(STEP + _time(step, gpu) for step in steps)


def host_time(steps: Sequence[Launch | Operator], backward: bool) -> float:
    """Return the microseconds until the call returns to its caller."""
    launches = sum(isinstance(step, Launch) for step in steps)
    operators = len(steps) - launches
    return HOST_OPERATOR * operators + HOST_LAUNCH * launches + HOST_BACKWARD * backward


def copy_time(nbytes: int, gpu: Gpu) -> float:
    """Return the microseconds of a copy of so many bytes, read and written together."""
    return 1e6 * (STEP + nbytes / gpu.bandwidth)


def dense_time(flops: int, dtype: str, gpu: Gpu) -> float:
    """Return the microseconds of dense products of so many operations."""
    return 1e6 * (STEP + flops / gpu.products(dtype))


def _overlapped(*parts: float) -> float:
    """Return the time of parts that overlap: somewhat more than that of the longest."""
    most = max(parts)
    return (
        most * sum((part / most) ** SHARPNESS for part in parts) ** (1 / SHARPNESS) if most else 0
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
    return max(memory, elements / gpu.each_clock(ELEMENTS))


@dataclass(frozen=True)
class Parts:
    """The seconds of a launch by what they are spent on; all but `l1` and `ramp` overlap."""

    memory: float
    """Bytes that reach memory, over its bandwidth."""
    l2: float
    """Bytes that several programs read, over L2's."""
    l1: float
    """Bytes that a program reads again, over L1's."""
    start: float
    """Programs, over the rate at which they start."""
    wait: float
    """Loads that wait for one another, and what they bring."""
    products: float
    ramp: float

    @property
    def total(self) -> float:
        """The seconds of the launch."""
        overlapping = _overlapped(self.memory, self.l2, self.start, self.wait, self.products)
        return overlapping + self.l1 + self.ramp


def parts(launch: Launch, gpu: Gpu) -> Parts:
    """Return what a launch's seconds are spent on."""
    programs, processors = launch.programs, gpu.multiprocessors
    # whole programs are spread over the multiprocessors: 288 take as long on 132 as 396
    uneven = math.ceil(programs / processors) * processors / programs
    reached = launch.read + launch.written
    several = max(launch.fetched - launch.read, 0) + max(launch.sent - launch.written, 0)
    again = max(launch.requested - launch.fetched, 0)
    at_once = resident(launch)
    waves = max(1.0, programs / (processors * at_once))
    of_one = reached / programs / gpu.bandwidth
    waits = launch.rounds if launch.flops else max(launch.longest_rounds, launch.rounds * waves)
    brings = 0.0 if launch.flops else waves * of_one * processors
    heaviest = launch.longest * processors / programs
    products = sum(flops / gpu.products(kind) for kind, flops in launch.flops.items())
    return Parts(
        memory=reached / gpu.bandwidth * uneven,
        l2=several / gpu.each_clock(FROM_L2) * uneven,
        l1=again / gpu.each_clock(FROM_L1),
        start=programs / (PROGRAMS * gpu.hertz),
        wait=WAIT * waits + brings,
        products=products * max(uneven, heaviest),
        ramp=RAMP * of_one * min(at_once * processors, programs),
    )


def resident(launch: Launch) -> int:
    """Return the programs that one multiprocessor runs at a time.

    Registers and shared memory are estimated from the largest product: a compiled kernel's own
    figures bring the times no closer, as `docs/model.md` says.
    """
    threads = launch.warps * THREADS
    programs = min(BLOCKS, WARPS // launch.warps, REGISTERS // (threads * _registers(launch)))
    if shared := shared_bytes(launch):
        programs = min(programs, SHARED // shared)
    return max(programs, 1)


OWN_REGISTERS, MOST_REGISTERS = 60, 255
"""Registers of a thread beside its share of a product's sums; the most that it can have."""


def _registers(launch: Launch) -> int:
    m, n, _ = launch.tile
    sums = m * n // (launch.warps * THREADS)
    return min(sums + OWN_REGISTERS, MOST_REGISTERS) if sums else 1


def shared_bytes(launch: Launch) -> int:
    """Return the bytes of the tiles that are loaded ahead of a product."""
    m, n, k = launch.tile
    size = max((SIZES.get(kind, 1) for kind in launch.flops), default=0)
    return launch.stages * (m + n) * k * size
