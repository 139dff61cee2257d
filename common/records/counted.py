"""The counted work of one call: torch's operators and launches of kernels, in order."""

from __future__ import annotations

from typing import Any

import msgspec


class Step(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="step", omit_defaults=True
):
    """One operator or one launch; every number is in bytes unless it says otherwise."""


class Operator(Step, frozen=True, kw_only=True, tag="operator"):
    """An operator of torch's own."""

    operator: str
    read: int
    """Of its inputs, each element in memory once."""
    written: int
    flops: int = 0
    """Operations of products; 0 for other operators."""
    dtype: str = ""
    plain: bool = True
    """Whether all tensors have one shape and lie whole in memory, in the same order."""


class Launch(Step, frozen=True, kw_only=True, tag="launch"):
    """A launch of a Triton kernel; the sums are of all programs, as a sample of them tells."""

    kernel: str
    grid: tuple[int, int, int]
    """Programs along each axis."""
    constants: dict[str, Any]
    warps: int
    """Of a program."""
    stages: int
    sampled: int
    """Programs that were run."""
    spread: float
    """The standard deviation of their work over its mean."""
    loaded: int
    """Bytes that lanes load, those that several lanes load once for each."""
    stored: int
    requested: int
    """Bytes of the sectors of 32 bytes that each load touches."""
    sent: int
    """Bytes of the sectors that each store touches."""
    fetched: int
    """Bytes of the sectors that each program reads, once for the program."""
    read: int
    """Bytes of the sectors that the launch reads, once for all programs."""
    written: int
    """Bytes of the sectors that it writes, once."""
    flops: dict[str, int]
    """Operations of `tl.dot`, by the operands' type: `bf16`, `fp16`, `tf32`, `fp32` and so on."""
    tile: tuple[int, int, int]
    """m, n and k of the largest `tl.dot`; zeros without one."""
    rounds: float
    """Waits for memory, one after the other, of the average program."""
    longest: float
    """The work of the heaviest program over that of the average one."""
    longest_rounds: float

    @property
    def programs(self) -> int:
        """The number of programs."""
        x, y, z = self.grid
        return x * y * z


Steps = list[Operator | Launch]
