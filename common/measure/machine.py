"""This machine as a record names it: device, versions, and digests of what measured."""

from __future__ import annotations

import platform
import re
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch

from common.digest import digest
from common.grading.memory import GIB
from common.measure.limits import MEASURED
from common.paths import COMMON
from common.peaks import peak_of
from common.records.runs import INTERPRETER, DeviceInfo, folder_of
from common.solutions import Solution, imported, package_of


def device_info(
    device: Literal["cpu", "cuda"], solutions: Iterable[Solution], budget: int
) -> DeviceInfo:
    """Return the device of this process.

    Args:
        device: `cpu` or `cuda`.
        solutions: The solutions that run on it.
        budget: The bytes of a GPU that may be taken.
    """
    timed = device == "cuda"
    return DeviceInfo(
        device=device,
        name=device_name(device),
        node=socket.gethostname(),
        uuid=str(torch.cuda.get_device_properties().uuid) if timed else "cpu",
        versions=versions() | peer_versions(solutions),
        memory_gib=round(budget / GIB) if timed else 0,
    )


def device_name(device: str) -> str:
    """Return the GPU's name as torch has it, or a name for the interpreter."""
    return str(torch.cuda.get_device_name()) if device == "cuda" else INTERPRETER


def device_fields(device: str) -> dict[str, Any]:
    """Return what a file says of its device, by which a similar device finds it."""
    fields: dict[str, Any] = {"device": device_name(device)}
    if device == "cuda":
        gpu = torch.cuda.get_device_properties()
        fields["compute_capability"] = f"{gpu.major}.{gpu.minor}"
        fields["multiprocessors"] = gpu.multi_processor_count
    return fields


def results_folder(device: str) -> str:
    """Return the name of the device's folder: `nvidia-h200`, or `cpu`, which stays out of git."""
    return folder_of(device_name(device))


def results_folders(device: str) -> list[str]:
    """Return the folders of all devices of a kind that this process sees, the first one first."""
    if device == "cpu":
        return [results_folder(device)]
    names = map(torch.cuda.get_device_name, range(torch.cuda.device_count()))
    return list(dict.fromkeys(map(folder_of, names)))


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that every run uses."""
    found = {package: metadata.version(package) for package in ("torch", "triton", "numpy")}
    return {"python": platform.python_version(), **found}


def peer_versions(solutions: Iterable[Solution]) -> dict[str, str]:
    """Return the versions of the peers' libraries other than torch, by the names that pip uses."""
    packages = {package_of(solution.handle) for solution in solutions if solution.peer} - {"torch"}
    if not packages:
        return {}
    names = metadata.packages_distributions()
    found = sorted({name for package in packages for name in names.get(package, [])[:1]})
    return {name: metadata.version(name) for name in found}


def peak(device_name: str) -> dict[str, Any]:
    """Return the datasheet's rates of the device; empty without a GPU.

    Of a GPU whose rates are not known, `source` alone, which is `measured`.
    """
    if known := peak_of(device_name):
        return asdict(known)
    return {} if device_name == INTERPRETER else {"source": MEASURED}


HARNESS = (
    "*.py",
    "peers/*.py",
    "records/lines.py",
    *(f"{room}/**/*.py" for room in ("sandbox", "grading", "measure", "engines")),
)
"""The files that grade and time, by folder: a new file in one of these folders is one of them."""
OF_EVERY_OP = ("__init__", "_draw")
"""The modules of `common/ops` that grade and time, whichever the op."""
SHOWS = ("cli.py", "__main__.py", "sandbox/standalone")
"""The files among these that grade and time nothing."""


def harness_digest(op: str) -> str:
    """Return the digest of an op with all of `common/ops` that it imports, and of the harness.

    The harness is everything that grades and times. Another op's file is not in the digest, so that
    its rows stay as they are.
    """
    files = [path for pattern in HARNESS for path in COMMON.glob(pattern)]
    shows = [COMMON / name for name in SHOWS]
    counts = (path for path in files if not any(path.is_relative_to(each) for each in shows))
    return digest([*counts, *_imported(COMMON / "ops", [*OF_EVERY_OP, op])])


def _imported(folder: Path, waiting: list[str]) -> Iterator[Path]:
    """Yield the files of these modules of `common/ops`, and of those there that they import."""
    known = set(waiting)
    while waiting:
        path = folder / f"{waiting.pop()}.py"
        if not path.is_file():  # a name that a module defines, not a module
            continue
        yield path
        try:
            names = [re.sub(r"^\.", "common.ops.", name) for name in imported(path.read_text())]
        except SyntaxError:  # of an op that is not asked
            continue
        found = {name.split(".")[2] for name in names if name.startswith("common.ops.")}
        waiting += sorted(found - known)
        known |= found


def digests_of(solutions: Sequence[Solution]) -> dict[Solution, tuple[str, str]]:
    """Return for each solution its digest, and its op's with the harness's, which its rows keep."""
    harness = {op: harness_digest(op) for op in {solution.op for solution in solutions}}
    return {solution: (solution.digest, harness[solution.op]) for solution in solutions}
