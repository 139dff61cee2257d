"""The calls that the clock times, such as the limits, the probes and the replay of a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from common.spec import Product

Runnable = Callable[[], object]
Prepare = Callable[[], Runnable]
"""A function that does the untimed part of a call and returns the timed part."""
LONGEST_SPIN = 5000.0
QUEUING = 300.0
"""The microseconds in which the host queues a copy or nine products; also the shortest spin."""
MARGIN = 1.5
"""The ratio of the first spin to the time in which the host queued an earlier call."""


def _nothing() -> None:
    pass


@dataclass
class TimedCallable:
    """A call to time, and the untimed work before and after each sample."""

    ready: Prepare
    before: Callable[[], None] = field(default_factory=lambda: _nothing)
    after: Callable[[], None] = field(default_factory=lambda: _nothing)
    grad: bool = True
    spin: float = QUEUING
    """The microseconds for which the GPU spins while the host queues `before` and the call."""

    def queued_in(self, microseconds: float) -> None:
        """Set a spin longer than the `microseconds` that the host took to queue a call."""
        self.spin = min(max(MARGIN * microseconds, self.spin), LONGEST_SPIN)

    def spin_longer(self) -> bool:
        """Spin for twice as long from now on; return whether that is possible."""
        previous, self.spin = self.spin, min(2 * self.spin, LONGEST_SPIN)
        return previous < self.spin


def as_run(call: Any, backward: bool) -> Runnable:
    """Return a call that runs forward, or forward and backward.

    Args:
        call: `(forward, differentiable inputs, upstream gradient)`.
        backward: Also compute the gradients.
    """
    forward, wanted, grad_output = call
    if not backward:
        return forward  # type: ignore[no-any-return]
    return lambda: torch.autograd.grad(forward(), wanted, grad_output)


def copy(nbytes: int) -> Runnable:
    """Return a copy whose bytes read and written add up to `nbytes`: the limit of memory."""
    source, target = (
        torch.empty(max(nbytes // 2, 1), dtype=torch.uint8, device="cuda") for _ in range(2)
    )
    source.random_(generator=torch.Generator("cuda"))
    return lambda: target.copy_(source)


def dense(products: Sequence[Product], dtype: torch.dtype) -> Runnable:
    """Return dense products of these shapes, run one after the other: the limit of arithmetic.

    torch runs them with the vendor's library. The values are random, since zeros would draw less
    power and run faster. Each product is freed before the next one.
    """
    generator = torch.Generator("cuda")

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=dtype, device="cuda", generator=generator)

    factors = [(random(m, k), random(n, k)) for m, k, n in products]

    def run() -> None:
        for pair in factors:
            torch.nn.functional.linear(*pair)

    return run


@dataclass(frozen=True)
class Captured:
    """A CUDA graph of one call."""

    replay: Runnable
    output: torch.Tensor
    """The tensor that every replay writes its output to."""


def captured(forwards: Sequence[Runnable]) -> list[Captured]:
    """Capture each call as a CUDA graph; return an empty list if a capture fails.

    A call that waits for the GPU is detected before the capture, since a failed capture leaves
    torch's default random generator unusable in this process. The limits use their own generators.
    """
    try:
        torch.cuda.set_sync_debug_mode("error")
        for forward in forwards:
            forward()
        torch.cuda.set_sync_debug_mode("default")
        return [_capture(forward) for forward in forwards]
    except Exception:  # the solution or torch may raise anything; no replay is timed in that case
        return []
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()


def _capture(forward: Runnable) -> Captured:
    graph = torch.cuda.CUDAGraph()
    # a failed capture does not restore the current stream by itself
    with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph):
        output = forward()
    assert isinstance(output, torch.Tensor)
    return Captured(graph.replay, output)
