"""What `check` and `check --watch` start with, as quickly as two cores allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common import paths
from common.importing import import_torch

if TYPE_CHECKING:
    from common.grading.compiling import Compiler
    from common.grading.fork_server import ForkServer
    from common.records.runs import Results


def fork_server(device: str, verbose: bool) -> ForkServer:
    """Return a fork server; while it imports torch, this process does so too."""
    from common.grading.fork_server import ForkServer

    server = ForkServer(device, quiet=not verbose)
    import_torch()
    return server


def compiler(device: str, verbose: bool) -> Compiler:
    """Return the compiler of what is graded on a device."""
    from common.grading.compiling import Compiler

    return Compiler(device, quiet=not verbose)


def earlier_rows(server: ForkServer) -> Results:
    """Return what was measured on the server's device, with which a process shares its memory.

    Import what the board will need, while the fork servers import Triton.
    """
    from common.board import terminal  # noqa: F401
    from common.grading.sharing import check_sharing
    from common.measure import machine
    from common.records import runs

    if server.device == "cuda":
        check_sharing(server)
    return runs.read(paths.RESULTS / machine.results_folder(server.device))
