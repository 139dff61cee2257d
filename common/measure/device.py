"""The GPU's state while a case is timed, read through NVML: clocks, temperature, throttling.

The harness reads it while the solution's process is timed. Without nvidia-ml-py, or if NVML does
not answer, the state is empty.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from common.records.lines import POWER_CAP

State = dict[str, Any]
"""A summary of readings; see `summary`."""
Reading = dict[str, int]
"""The known ones of `sm_mhz`, `memory_mhz`, `celsius` and `reasons` (NVML bits)."""

PERIOD = 0.1
"""Seconds between two readings; each delays the harness's stopwatch by a fraction of 1 ms."""
THROTTLES = {
    0x04: POWER_CAP,
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""The bits of NVML's clocks event reasons that mean the GPU is throttled.

The other bits mean that the GPU is idle, or that its clocks were set.
"""


@contextlib.contextmanager
def watched(read: Callable[[], Reading] | None) -> Iterator[list[Reading]]:
    """Read the device now, and on a thread every PERIOD until the exit; yield the growing list.

    Args:
        read: Returns one reading of the device; None if the device cannot be read.
    """
    if read is None:
        yield []
        return
    readings, end = [read()], threading.Event()

    def watch() -> None:
        while not end.wait(PERIOD):
            readings.append(read())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield readings
    finally:
        end.set()
        thread.join()


def summary(readings: Sequence[Reading]) -> State:
    """Summarize readings; omit a value that is missing in all of them.

    Example: `{"sm_mhz": [1200, 1980], "memory_mhz": [2619, 2619], "celsius": [40, 55],
    "throttled": ["power cap"]}`, where a pair is the lowest and the highest value.
    """
    state: State = {}
    for name in ("sm_mhz", "memory_mhz", "celsius"):
        if values := [reading[name] for reading in readings if name in reading]:
            state[name] = [min(values), max(values)]
    bits = functools.reduce(int.__or__, (r["reasons"] for r in readings if "reasons" in r), 0)
    if any("reasons" in reading for reading in readings):
        state["throttled"] = [words for bit, words in THROTTLES.items() if bits & bit]
    return state


@functools.cache
def reader(device: str) -> Callable[[], Reading] | None:
    """Return a function that reads this process's GPU; None for a CPU, or without NVML."""
    if device != "cuda":
        return None
    uuid = str(torch.cuda.get_device_properties().uuid)
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
    except Exception:  # no package, no library, no permission, or a MIG slice unknown to NVML
        return None
    return functools.partial(read, nvml, handle)


def read(nvml: Any, handle: Any) -> Reading:
    """Read the device once; omit a value that it or its driver does not support."""
    queries: dict[str, Callable[[], int]] = {
        "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        # the function's older name, which every version of nvidia-ml-py has
        "reasons": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
    }
    reading = {}
    for name, query in queries.items():
        with contextlib.suppress(nvml.NVMLError):
            reading[name] = query()
    return reading
