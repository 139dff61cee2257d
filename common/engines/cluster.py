"""The connection to a Ray cluster, or to one of this machine alone."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

from common.errors import UserError

LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""The variable by which Ray binds to the loopback address alone, on Linux too; otherwise each of
its processes listens on every interface. It is read when Ray is imported."""
TOKEN = "RAY_AUTH_MODE"
"""The variable by which Ray sends a token; without it, none to a cluster that has an address."""
QUICK = {"RAY_py_gcs_connect_timeout_s": "5", "RAY_NUM_REDIS_GET_RETRIES": "2"}
"""The variables by which Ray gives up a head that does not answer after half a minute, not five."""
LONGEST_ANSWER = 10.0
"""Seconds in which the head's port must answer."""


def connect(address: str | None, environment: Mapping[str, Any]) -> None:
    """Connect to a cluster, or start one that only this machine can reach.

    Raises:
        UserError: There is none at the address, or it has another version or token.
    """
    if address is None:
        os.environ.setdefault(LOOPBACK, "0")
    os.environ.update(QUICK)
    if address:
        _reach(address)
    try:
        ray().init(
            address=address or "local",
            runtime_env=dict(environment),
            include_dashboard=False if address is None else None,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except (ConnectionError, RuntimeError, ray().exceptions.RayError) as error:
        where, why = address or "this machine", " ".join(str(error).split())
        told = f"no connection to a Ray cluster at {where}: {why}"
        hint = "" if TOKEN in os.environ else f"; if it asks for a token, set {TOKEN}=token"
        raise UserError(told + hint) from None


def _reach(address: str) -> None:
    """Connect to the head's port, and leave it: Ray itself would try for minutes, in many lines.

    Raises:
        UserError: Nothing listens there.
    """
    host, _, port = address.rpartition(":")
    if host in ("localhost", "127.0.0.1"):
        host = ray().util.get_node_ip_address()  # as Ray does
    at = address if address.startswith(host) else f"{address}, which Ray takes for {host}"
    try:
        socket.create_connection((host, int(port)), LONGEST_ANSWER).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"no Ray cluster at {at}: {why}") from None


def ray() -> Any:
    """Return the module, which takes a second to import.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    import ray as found

    return found
