"""What the GPU did while a case was timed: clocks, temperature, throttling, company; through NVML.

Runs in the harness, beside the process that is timed. Where nvidia-ml-py is not installed, or NVML
does not answer, nothing is known and nothing is said.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common.records.fields import POWER_CAP

State = dict[str, Any]
Reading = dict[str, int]

PERIOD = 0.1
THROTTLES = {
    0x04: POWER_CAP,
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""The bits of NVML's clocks event reasons that mean that the GPU runs slower than it would; the
others say that it is idle, or that somebody chose its clocks."""


class Watch:
    """Reads the device every PERIOD while it is entered; `state` then sums it up."""

    def __init__(self, read: Callable[[], Reading] | None) -> None:
        self._read = read
        self._readings: list[Reading] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watch:
        if self._read:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._read:
            self._thread.join()

    def _watch(self) -> None:
        assert self._read
        while not self._end.wait(PERIOD):
            self._readings.append(self._read())

    @property
    def state(self) -> State:
        return summary(self._readings)


def summary(readings: Sequence[Reading]) -> State:
    """`{"sm_mhz": [lowest, highest], "memory_mhz", "celsius", "throttled": [...], "others": n}`;
    what no reading has is left out."""
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
def reader(uuid: str) -> Callable[[], Reading] | None:
    """Reads the device of that UUID, as torch has it; None where NVML cannot be asked."""
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
    except Exception:  # not installed, no library, no permission, a slice that NVML does not name
        return None
    return functools.partial(read, nvml, handle)


def read(nvml: Any, handle: Any) -> Reading:
    """One reading; what this device or driver does not tell is left out."""
    asked: dict[str, Callable[[], int]] = {
        "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        # the older of its two names, which every version has
        "reasons": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        "others": lambda: others(len(nvml.nvmlDeviceGetComputeRunningProcesses(handle))),
    }
    reading = {}
    for name, ask in asked.items():
        with contextlib.suppress(nvml.NVMLError):
            reading[name] = ask()
    return reading


def others(computing: int) -> int:
    """How many of so many processes on the GPU are not ours. They are counted and not named: in a
    container NVML may give ids of the host's."""
    return max(computing - sum(map(_holds_gpu, _family(os.getpid()))), 0)


def _family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    family = [pid]
    for member in family:  # which grows
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
