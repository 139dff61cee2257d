"""A Chrome trace of a few calls by torch's profiler, taken in a solution's process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from common.sandbox import backend

CALLS = 3
"""Calls in the trace. One more runs before them, since a first call may compile."""


def chrome_trace(run: Callable[[], object]) -> str:
    """Return the trace of `CALLS` calls as JSON text."""
    run()
    backend.synchronize()
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * backend.ON_GPU]
    with profile(activities=activities) as profiled:
        for _ in range(CALLS):
            run()
        backend.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        return path.read_text()
