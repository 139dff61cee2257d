"""A node's files: what travels to it, and its copy of the project, where no solution may write.

Ray unpacks the project beneath the folder of temporary files, which solutions may write to (see
`sandbox/landlock.py`): a solution could change the harness that judges it. Each node therefore
copies it once more, into a folder of the user's home that is no compiler's cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.paths import ROOT, scratch

TRAVELS = ("common", "contributors", "pyproject.toml")
"""The entries of the repository that a node needs."""
VARIABLE = "STUDY_NODE_FOLDER"
"""The variable that names another folder for the copies."""
FOLDER = ".triton-study"
"""The folder in the user's home."""
UNUSED = 30 * 24 * 3600
"""Seconds after its last use from which on a copy is removed."""


def runtime_environment(install: bool) -> dict[str, Any]:
    """Return what each node gets: the project's files, and packages if they are to be installed."""
    excluded = [f"/{each.name}" for each in ROOT.iterdir() if each.name not in TRAVELS]
    files = {"working_dir": str(ROOT), "excludes": [*excluded, "__pycache__"]}
    if not install:
        return files
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    return {**files, "pip": {"packages": _packages(groups, "run"), "pip_check": False}}


def _packages(groups: Mapping[str, Sequence[Any]], group: str) -> list[str]:
    """Return the packages of a dependency group, those of the groups that it includes too."""
    found = []
    for each in groups[group]:
        found += [each] if isinstance(each, str) else _packages(groups, each["include-group"])
    return found


def folder() -> Path:
    """Return the folder of the copies.

    Raises:
        UserError: It lies where solutions may write.
    """
    found = Path(os.environ.get(VARIABLE) or Path.home() / FOLDER).resolve()
    if any(found.is_relative_to(each.resolve()) for each in scratch()):
        raise UserError(f"{found} lies where solutions may write: set {VARIABLE} on each node")
    return found


def settle(source: Path) -> Path:
    """Copy the project's files, unless the same are there already, and return their folder.

    Args:
        source: The project as Ray has unpacked it.

    Raises:
        UserError: The copy would lie where solutions may write, or cannot be made.
    """
    name = content(source)
    target = folder() / name / "study"
    try:
        _copied(source, target, name)
        _remove_unused(target.parent)
    except OSError as error:
        why = f"{target.parent}: {_reason(error)}"
        raise UserError(f"{why}: make room there, or set {VARIABLE} on each node") from None
    return target


def _copied(source: Path, target: Path, name: str) -> None:
    """Make the copy, unless it is there as it was made."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / "lock", "w") as lock:  # a node's stations start at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.utime(lock.fileno())  # the last use
        if not _intact(target, name):
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))


def _remove_unused(used: Path) -> None:
    """Remove the copies of other versions that no station has begun with for a month."""
    oldest = time.time() - UNUSED
    for lock in used.parent.glob("*/lock"):
        if lock.parent != used and lock.stat().st_mtime < oldest:
            shutil.rmtree(lock.parent, ignore_errors=True)


def _reason(error: OSError) -> str:
    """Return the reason of an error; a copy of a tree has one for each file."""
    if isinstance(error, shutil.Error):
        return str(error.args[0][0][-1])
    return error.strerror or str(error)


def _intact(target: Path, name: str) -> bool:
    """Return whether a copy is there as it was made.

    A solution of another version of the project may have written to it: compiled modules too, which
    no station writes (see `ray_engine.Relay`).
    """
    return target.exists() and not any(target.rglob("__pycache__")) and content(target) == name


def content(root: Path) -> str:
    """Return sixteen hexadecimal digits that change with any file's name or content."""
    total = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            raw, name = path.read_bytes(), path.relative_to(root)
            total.update(f"{name}\0{len(raw)}\0".encode() + raw)
    return total.hexdigest()[:16]
