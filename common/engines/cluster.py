"""The connection to a Ray cluster, or the start of one, and what its nodes get."""

from __future__ import annotations

import os
import socket
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.errors import UserError
from common.paths import ROOT

LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""The variable that makes Ray bind to the loopback address only, on Linux too; otherwise each of
its processes listens on every interface. Ray reads it when it is imported."""
OWN = {LOOPBACK: "0", "RAY_memory_monitor_refresh_ms": "0", "RAY_worker_niceness": "0"}
"""The variables of a cluster of this machine only: Ray kills no process to save memory, and gives
no process a lower priority while it is timed."""
TOKEN = "RAY_AUTH_MODE"
"""The variable that makes Ray send a token; without it, a cluster with an address gets none."""
QUICK = {"RAY_py_gcs_connect_timeout_s": "5", "RAY_NUM_REDIS_GET_RETRIES": "2"}
"""The variables that make Ray give up an unresponsive head after half a minute instead of five."""
LONGEST_ANSWER = 10.0
"""Seconds for the head's port to answer."""
TRAVELS = ("common", "contributors", "pyproject.toml")
"""The entries of the repository that are copied to each node."""


@dataclass(frozen=True)
class Cluster:
    """A cluster to connect to, or one of this machine only, which no other machine can reach."""

    address: str | None = None
    """HOST:PORT of the cluster's head; None for a cluster of this machine only."""
    install: bool = False
    """Whether each node first installs the packages of the group `run`."""
    gpus: int = 0
    """The number of GPUs of a cluster of this machine only."""
    share: int = 1
    """The executors that share each GPU or, without one, this machine's cores."""

    @property
    def longest_placing(self) -> float:
        """Seconds for Ray to find a GPU for an actor; then the GPU counts as taken or gone."""
        return 1800.0 if self.install else 120.0

    def connect(self) -> None:
        """Connect to the cluster, or start it.

        Raises:
            UserError: There is no cluster at the address, or it has another version or token.
        """
        how: dict[str, Any] = {"address": self.address}
        os.environ.update(QUICK)
        if self.address:
            _reach(self.address)
        else:
            os.environ.update(OWN | os.environ)
            how = {"address": "local", "include_dashboard": False, "num_gpus": self.gpus}
            how |= {"num_cpus": (self.gpus or 1) * self.share}
        how |= {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            ray().init(runtime_env=environment(self.install), **how)
        except (ConnectionError, RuntimeError, ray().exceptions.RayError) as error:
            where, why = self.address or "this machine", " ".join(str(error).split())
            hint = "" if TOKEN in os.environ else f"; if it asks for a token, set {TOKEN}=token"
            raise UserError(f"no connection to a Ray cluster at {where}: {why}{hint}") from None


def _reach(address: str) -> None:
    """Check that the head's port answers: Ray would retry for minutes and print many lines.

    Raises:
        UserError: Nothing listens on the port.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), LONGEST_ANSWER).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"no Ray cluster at {address}: {why}") from None


def environment(install: bool) -> dict[str, Any]:
    """Return Ray's environment of the nodes: the project's files, and the packages to install."""
    excluded = [f"/{path.name}" for path in ROOT.iterdir() if path.name not in TRAVELS]
    files = {"working_dir": str(ROOT), "excludes": [*excluded, "__pycache__"]}
    if not install:
        return files
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    return {**files, "pip": {"packages": _packages(groups, "run"), "pip_check": False}}


def _packages(groups: Mapping[str, Sequence[Any]], group: str) -> list[str]:
    """Return the packages of a dependency group and of the groups that it includes."""
    packages = []
    for entry in groups[group]:
        packages += [entry] if isinstance(entry, str) else _packages(groups, entry["include-group"])
    return packages


def ray() -> Any:
    """Return the module `ray`, which takes a second to import.

    Raises:
        ModuleNotFoundError: Ray is not installed.
    """
    import ray as module

    return module
