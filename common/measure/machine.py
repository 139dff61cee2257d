"""The fields of a record that identify the machine, the library versions and the harness."""

from __future__ import annotations

import contextlib
import platform
import re
import socket
import subprocess
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

from common.digest import digest
from common.disk_cache import package_versions
from common.paths import COMMON
from common.solutions import Solution, package_of

INTERPRETER = "CPU, Triton's interpreter"
"""The device's name without a GPU."""


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One device of one node, as named in records."""

    device: Literal["cpu", "cuda"]
    name: str
    """The device's name from torch, or `INTERPRETER`."""
    node: str
    """The host's name."""
    uuid: str
    """The GPU's UUID; `cpu` without a GPU."""
    versions: dict[str, str]
    """The versions of Python and of the measured packages."""
    machine: dict[str, str] = {}
    """What else decides a time: see `machine`; empty without a GPU."""


def folder_of(name: str) -> str:
    """Return the folder of a device's records: `nvidia-h200`, or `cpu` for `INTERPRETER`."""
    if name == INTERPRETER:
        return "cpu"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def device_info(device: Literal["cpu", "cuda"], solutions: Iterable[Solution]) -> DeviceInfo:
    """Return the device of this process, on which these solutions run."""
    uuid = str(torch.cuda.get_device_properties().uuid) if device == "cuda" else "cpu"
    return DeviceInfo(
        device=device,
        name=device_name(device),
        node=socket.gethostname(),
        uuid=uuid,
        versions=versions() | peer_versions(solutions),
        machine=machine(uuid) if device == "cuda" else {},
    )


def machine(uuid: str) -> dict[str, str]:
    """Return CUDA's version, the CPU's name, and a GPU's driver and power limit, as far as known.

    The last two are as nvidia-smi prints them: `580.95.05` and `700.00 W`.
    """
    query = ["nvidia-smi", f"--id=GPU-{uuid}", "--query-gpu=driver_version,power.limit"]
    said = ""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        said = subprocess.check_output([*query, "--format=csv,noheader"], text=True)
    cpu = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    values = torch.version.cuda, cpu and cpu[1], *said.strip().split(", ")
    names = ("CUDA", "CPU", "driver", "power limit")
    return {name: value for name, value in zip(names, values, strict=False) if value}


def device_name(device: str) -> str:
    """Return torch's name of the GPU, or the interpreter's name for a CPU."""
    return str(torch.cuda.get_device_name()) if device == "cuda" else INTERPRETER


def device_fields(device: str) -> dict[str, Any]:
    """Return the fields that identify a device in a file of configurations."""
    fields: dict[str, Any] = {"device": device_name(device)}
    if device == "cuda":
        gpu = torch.cuda.get_device_properties()
        fields["compute_capability"] = f"{gpu.major}.{gpu.minor}"
        fields["multiprocessors"] = gpu.multi_processor_count
    return fields


def results_folder(device: str) -> str:
    """Return the device's folder, such as `nvidia-h200`, or `cpu`, which git ignores."""
    return folder_of(device_name(device))


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that every run uses."""
    return {"python": platform.python_version(), **package_versions()}


def peer_versions(solutions: Iterable[Solution]) -> dict[str, str]:
    """Return the versions of the peers' libraries except torch, by distribution name."""
    packages = {package_of(solution.handle) for solution in solutions if solution.peer} - {"torch"}
    if not packages:
        return {}
    names = metadata.packages_distributions()
    distributions = {name for package in packages for name in names.get(package, [])[:1]}
    return {name: metadata.version(name) for name in sorted(distributions)}


HARNESS = (
    "*.py",
    "ops/*.py",
    "peers/*.py",
    "records/lines.py",
    *(f"{folder}/**/*.py" for folder in ("sandbox", "grading", "measure", "engines")),
)
"""The patterns of the files that grade and time; they also match files that are added later."""


def harness_digest() -> str:
    """Return the digest of all code that grades and times, the ops' included."""
    return digest({path for pattern in HARNESS for path in COMMON.glob(pattern)})


def digests_of(solutions: Sequence[Solution]) -> dict[Solution, tuple[str, str]]:
    """Return the digests that a solution's rows store: its own and the harness's."""
    harness = harness_digest()
    return {solution: (solution.digest, harness) for solution in solutions}
