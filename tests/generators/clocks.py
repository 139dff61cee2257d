"""Compare what the clock measures with known times, on an otherwise idle machine.

    python -m tests.generators.clocks

Without a GPU, only the host's probe and a training loop are measured. The exit code is 1 if a
measured value is further off than the table allows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from timeit import timeit

import numpy as np
import torch

from common.sandbox.clock import Clock, Probes
from common.sandbox.rotation import Rotation, TimedCall, synchronize
from tests.support.on_gpu import ROUNDS, measured_on_gpu

LATE = 400e-6
"""Seconds by which a call is queued later."""
STEPS = 200
"""The steps of a loop."""
HEADER = """\
| of | measured, us | expected, us | within |
| --- | ---: | ---: | ---: |"""
Row = tuple[str, float, float, float]
"""What is measured, in microseconds; what is expected; and the ratio that either may be larger."""


def of_the_host() -> Iterator[Row]:
    """Yield the probe of the host, in a first turn and in a second one."""
    first, second = (min(Probes().take("host", 5)) for _ in range(2))
    yield "the host's probe once more", first, second, 20.0


def of_a_loop() -> Iterator[Row]:
    """Yield a step of small launches in a loop of the harness, and in a loop of a user."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, weight, gradient = (torch.rand(64, 64, device=device) for _ in range(3))
    wanted = [x.requires_grad_(), weight.requires_grad_()]

    def forward() -> torch.Tensor:
        return torch.nn.functional.silu(x @ weight.T) * x

    def users_loop() -> None:
        for _ in range(STEPS):
            torch.autograd.grad(forward(), wanted, gradient)
        synchronize()

    calls = [TimedCall(forward, wanted, gradient)] * 2
    clock = Clock(Rotation(calls, True), True, {})

    def harness_loop() -> None:
        clock.run("solution", STEPS // len(calls), renew=False, call=True, wait=True)

    times = [[timeit(loop, number=1) for loop in (harness_loop, users_loop)] for _ in range(ROUNDS)]
    ours, users = 1e6 * np.median(times, axis=0) / STEPS
    yield "a step of a training loop", ours, users, 1.1


def clone(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def late(x: torch.Tensor) -> torch.Tensor:
    time.sleep(LATE)
    return x.clone()


def of_a_gpu() -> Iterator[Row]:
    """Yield a copy that is added, a call that is queued late, and a replay."""
    gpu = medians(lambda x: x.clone().clone())["gpu"]
    yield "a copy more, by the GPU", gpu["solution"] - gpu["eager"], gpu["copy"], 1.1
    by = medians(late)
    yield "a call that is queued late, by the GPU", by["gpu"]["solution"], by["gpu"]["eager"], 1.03
    host = by["host"]["solution"] - by["host"]["eager"]
    yield "the same, by the host", host, 1e6 * LATE, 1.5
    gpu = medians(clone)["gpu"]
    yield "a replay, by the GPU", gpu["graph"], gpu["eager"], 1.05


def medians(solution) -> dict[str, dict[str, float]]:
    """Return the medians of a function beside those of a copy, by clock and timed callable."""
    return {
        clock: {name: float(np.median(samples)) for name, samples in each.items()}
        for clock, each in measured_on_gpu(solution, clone).items()
    }


def main() -> int:
    """Print the table; return the exit code."""
    print(HEADER)
    rows = [*of_the_host(), *of_a_loop(), *(of_a_gpu() if torch.cuda.is_available() else ())]
    for of, measured, expected, within in rows:
        print(f"| {of} | {measured:.2f} | {expected:.2f} | {within:g}x |")
    return int(any(max(m / e, e / m) > within for _, m, e, within in rows))


if __name__ == "__main__":
    sys.exit(main())
