"""A Chrome trace of a few calls by torch's profiler, taken in a solution's process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

CALLS = 3
"""Calls in the trace. One more runs before them, since a first call may compile."""


def chrome_trace(run: Callable[[], object], cuda: bool) -> str:
    """Return the trace of `CALLS` calls as JSON text."""
    run()
    _synchronize(cuda)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as profiled:
        for _ in range(CALLS):
            run()
        _synchronize(cuda)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        return path.read_text()


def _synchronize(cuda: bool) -> None:
    if cuda:
        torch.cuda.synchronize()
