"""A probe of CUDA IPC, by which the harness shares a GPU's memory with the solutions' processes."""

from __future__ import annotations

import os
import platform

from common import wire
from common.arena import Arena, reclaim
from common.errors import UserError, is_out_of_memory
from common.grading.fork_server import ForkServer
from common.grading.worker import answer_of

LONGEST = 60.0
"""Seconds in which a process must map the memory; it starts CUDA first."""
OTHERWISE = "--device cpu grades without the GPU"


def check_sharing(server: ForkServer) -> None:
    """Share a few bytes with a process forked for this alone, as each solution's process is.

    Without the probe a machine that has no CUDA IPC would fail every solution as CRASHED.

    Raises:
        UserError: The memory cannot be shared; with the cause, and what to do.
    """
    try:
        arena = Arena(server.device, 1)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise UserError("the GPU has no free memory: end the other processes on it") from None
    try:
        failure = _failure(server, arena)
    finally:
        arena.close()
    if failure:
        raise UserError(
            "this machine cannot share GPU memory between processes"
            f" (CUDA IPC: {failure}): {_mend()}; {OTHERWISE}"
        )


def _failure(server: ForkServer, arena: Arena) -> str:
    """Return why another process cannot map the memory, "" if it can."""
    try:
        ticket = arena.ticket()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    started, pid, connection = server.fork()
    try:
        answer_of(connection, pid, wire.Share(ticket=ticket), LONGEST, arena.fds)
    except (OSError, EOFError, ValueError):
        return "a process forked for it could not map the memory; --verbose shows its error"
    finally:
        connection.close()
        server.reap(started, pid)
        reclaim(arena.lent)
    return ""


def _mend() -> str:
    """Return what to do on this machine.

    WSL2 has legacy CUDA IPC with some drivers alone (github.com/sgl-project/sglang/issues/35385).
    Expandable segments are passed on by pidfd_getfd, which most containers forbid
    (github.com/pytorch/pytorch/issues/165685). The slices of one GPU instance of MIG share memory,
    two instances do not.
    """
    if "microsoft" in platform.release().lower():
        return "under WSL2 it takes a recent driver for Windows, or Linux without it"
    settings = (os.environ.get(f"PYTORCH_{name}ALLOC_CONF", "") for name in ("", "CUDA_", "HIP_"))
    if any("expandable_segments:True" in setting for setting in settings):
        return "leave expandable_segments out of PYTORCH_CUDA_ALLOC_CONF"
    return "start a container with --ipc=host"
