"""A test of CUDA IPC, with which the harness shares GPU memory with the solutions' processes."""

from __future__ import annotations

import os
import platform

from common import wire
from common.arena import Arena, reclaim
from common.errors import UserError, is_out_of_memory
from common.grading.fork_server import ForkServer
from common.grading.worker import answer_of

MAPPING_TIMEOUT = 60.0
"""The time limit in seconds for a process to start CUDA and map the memory."""
ALTERNATIVE = "--device cpu grades without the GPU"


def check_sharing(server: ForkServer) -> None:
    """Share a few bytes of GPU memory with a forked process, as with a solution's process.

    Without this test, every solution would be CRASHED on a machine that has no CUDA IPC.

    Raises:
        UserError: The memory cannot be shared; the message has the cause and a remedy.
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
            f" (CUDA IPC: {failure}): {_remedy()}; {ALTERNATIVE}"
        )


def _failure(server: ForkServer, arena: Arena) -> str:
    """Return the reason why another process cannot map the memory, "" if it can."""
    try:
        ticket = arena.ticket()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    server_pid, pid, connection = server.fork()
    try:
        answer = answer_of(connection, pid, wire.Share(ticket=ticket), MAPPING_TIMEOUT, arena.fds)
    except (OSError, EOFError, ValueError):
        return "a forked process could not map the memory; --verbose shows its error"
    finally:
        connection.close()
        server.reap(server_pid, pid)
        reclaim(arena.lent)
    if answer.ended:
        return f"a forked process could not map the memory: {answer.reply.get('reason')}"
    return ""


def _remedy() -> str:
    """Return the remedy for this machine.

    WSL2 has legacy CUDA IPC only with some drivers (github.com/sgl-project/sglang/issues/35385).
    Expandable segments are shared by pidfd_getfd, which most containers forbid
    (github.com/pytorch/pytorch/issues/165685). Under MIG the slices of one GPU instance share
    memory, but two GPU instances do not.
    """
    if "microsoft" in platform.release().lower():
        return "under WSL2, install a recent Windows driver, or use Linux without WSL2"
    settings = (os.environ.get(f"PYTORCH_{name}ALLOC_CONF", "") for name in ("", "CUDA_", "HIP_"))
    if any("expandable_segments:True" in setting for setting in settings):
        return "leave expandable_segments out of PYTORCH_CUDA_ALLOC_CONF"
    return "start a container with --ipc=host"
