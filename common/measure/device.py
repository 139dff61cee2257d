"""The GPU's state while a case is timed, read through NVML: clocks, temperature, throttling, load.

It is read in the harness, beside the process that is timed. Without nvidia-ml-py, or where NVML
does not answer, the state is empty.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from common.processes import parents
from common.records.lines import POWER_CAP

State = dict[str, Any]
"""The readings summed up; see `summary`."""
Reading = dict[str, int]
"""One reading of `sm_mhz`, `memory_mhz`, `celsius`, `reasons` (NVML bits), `others`, if known."""

PERIOD = 0.1
"""Seconds between two readings, which take the harness's stopwatch a fraction of a millisecond."""
THROTTLES = {
    0x04: POWER_CAP,
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""The bits of NVML's clocks event reasons for which the GPU runs slower than it could.

The other bits mean that it is idle, or that its clocks were set.
"""


@contextlib.contextmanager
def watched(read: Callable[[], Reading] | None) -> Iterator[list[Reading]]:
    """Read the device once, and on a thread once a PERIOD meanwhile; yield the readings so far.

    Args:
        read: Reads the device; None where nothing can be read.
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
    """Sum readings up; a value that none of them has is left out.

    Example: `{"sm_mhz": [1200, 1980], "memory_mhz": [2619, 2619], "celsius": [40, 55],
    "throttled": ["power cap"], "others": 1}`, the lowest and the highest value of each range.
    """
    state: State = {}
    for name in ("sm_mhz", "memory_mhz", "celsius"):
        if values := [reading[name] for reading in readings if name in reading]:
            state[name] = [min(values), max(values)]
    bits = functools.reduce(int.__or__, (r["reasons"] for r in readings if "reasons" in r), 0)
    if any("reasons" in reading for reading in readings):
        state["throttled"] = [words for bit, words in THROTTLES.items() if bits & bit]
    if others := [reading["others"] for reading in readings if "others" in reading]:
        state["others"] = max(others)
    return state


@functools.cache
def reader(device: str) -> Callable[[], Reading] | None:
    """Return a function that reads this process's device; None for a CPU, or without NVML."""
    if device != "cuda":
        return None
    uuid = str(torch.cuda.get_device_properties().uuid)
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
    except Exception:  # not installed, no library, no permission, a slice that NVML does not name
        return None
    return functools.partial(read, nvml, handle)


def read(nvml: Any, handle: Any) -> Reading:
    """Read the device once; a value that it or its driver does not support is left out."""
    queries: dict[str, Callable[[], int]] = {
        "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        # the older of its two names, which every version has
        "reasons": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        "others": lambda: others(
            tuple(sorted(each.pid for each in nvml.nvmlDeviceGetComputeRunningProcesses(handle)))
        ),
    }
    reading = {}
    for name, query in queries.items():
        with contextlib.suppress(nvml.NVMLError):
            reading[name] = query()
    return reading


@functools.lru_cache(maxsize=1)
def others(pids: tuple[int, ...]) -> int:
    """Return how many of the processes on the GPU are not the harness's.

    They are counted rather than matched by id: in a container NVML may give the host's ids. Only
    other ids than the last ones lead to a walk over `/proc`, which takes 20 ms.
    """
    return max(len(pids) - sum(map(_holds_gpu, _family(os.getpid()))), 0)


def _family(pid: int) -> list[int]:
    """Return the ids of a process and of all its descendants."""
    children: dict[int, list[int]] = {}
    for child, parent in parents():
        children.setdefault(parent, []).append(child)
    family = [pid]
    for member in family:  # the list grows while it is walked
        family += children.get(member, [])
    return family


def _holds_gpu(pid: int) -> bool:
    with contextlib.suppress(OSError):
        files = os.listdir(f"/proc/{pid}/fd")
        return any(_target(f"/proc/{pid}/fd/{file}").startswith("/dev/nvidia") for file in files)
    return False


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
