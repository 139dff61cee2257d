"""The device behind a solution's process: a GPU, or Triton's interpreter in its place."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED:
    from common.sandbox.interpreter import bounds, patches

LAG = 10_000_000
"""The GPU's clock cycles by which its default stream lags behind another: a few milliseconds."""


def install() -> None:
    """Patch Triton's interpreter, once, before any kernel runs; do nothing on a GPU."""
    if INTERPRETED:
        patches.install()


def begin_watch(inputs: dict[str, torch.Tensor], backwards: bool) -> bounds.AccessLog | None:
    """Check every address of the call that follows against its arguments; None on a GPU.

    Args:
        inputs: The call's tensor arguments by name.
        backwards: Run the programs of a launch from the last to the first.

    Returns:
        The log of the call's accesses, in which an access out of bounds stays.
    """
    return bounds.WATCH.begin_call(inputs, backwards) if INTERPRETED else None


def is_watched_by(log: bounds.AccessLog) -> bool:
    """Return whether accesses are still reported to this log."""
    return log is bounds.WATCH.log


def another_stream() -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Return a function that enters a GPU stream of its own, which the default one lags behind.

    Work that a solution puts on the default stream by mistake is then late.
    """
    torch.cuda.synchronize()
    torch.cuda._sleep(LAG)
    return functools.partial(torch.cuda.stream, torch.cuda.Stream())


def synchronize() -> None:
    """Wait until the GPU, if there is one, has done all that was queued.

    Raises:
        RuntimeError: An earlier kernel has left the CUDA context unusable.
    """
    if not INTERPRETED:
        torch.cuda.synchronize()
