"""This machine as a record names it: device, versions, and digests of what measured."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import metadata
from typing import Any

import torch

from common.measure.limits import peak_of
from common.paths import COMMON
from common.solutions import Solution, digest, package_of


def device_name(device: str) -> str:
    return str(torch.cuda.get_device_name()) if device == "cuda" else "CPU, Triton's interpreter"


def results_file(device: str) -> str:
    """`nvidia-h200.jsonl`; `cpu.jsonl`, which stays out of git."""
    name = device_name(device).lower() if device == "cuda" else "cpu"
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-") + ".jsonl"


def versions() -> dict[str, str]:
    found = {package: metadata.version(package) for package in ("torch", "triton", "numpy")}
    return {"python": platform.python_version(), **found}


def peer_versions(solutions: Iterable[Solution]) -> dict[str, str]:
    """Of the libraries behind the peers, torch's own aside, by the names that pip has for them."""
    packages = {package_of(solution.handle) for solution in solutions if solution.peer} - {"torch"}
    if not packages:
        return {}
    names = metadata.packages_distributions()
    found = sorted({name for package in packages for name in names.get(package, [])[:1]})
    return {name: metadata.version(name) for name in found}


def peak(device_name: str) -> dict[str, Any]:
    known = peak_of(device_name)
    return asdict(known) if known else {}


HARNESS = (
    "*.py",
    "peers/*.py",
    *(f"{room}/**/*.py" for room in ("ops", "sandbox", "grading", "measure")),
)
"""The files that grade and time, by folder; a new file in one of these rooms counts by itself."""
SHOWS = ("cli.py", "__main__.py", "sandbox/alone")
"""What of these grades nothing."""


def harness_digest() -> str:
    """Return the digest of the ops and of everything that grades and times."""
    files = (path for pattern in HARNESS for path in COMMON.glob(pattern))
    shows = [COMMON / name for name in SHOWS]
    return digest(path for path in files if not any(path.is_relative_to(each) for each in shows))


def digests_of(solutions: Sequence[Solution]) -> dict[Solution, tuple[str, str]]:
    """What each row is kept with: the digest of its solution, and the harness's."""
    harness = harness_digest()
    return {solution: (solution.digest, harness) for solution in solutions}
