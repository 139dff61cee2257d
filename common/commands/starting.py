"""What `check` and `check --watch` start with, as quickly as two cores allow."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from common import paths

if TYPE_CHECKING:
    from common.grading.compiling import Compiler
    from common.grading.fork_server import ForkServer
    from common.records.runs import Results


def fork_server(device: str, verbose: bool) -> ForkServer:
    """Return a fork server; while it imports torch, this process does so too.

    Import what grading imports at its first gradient as well, which a thread would wait for later.
    """
    from common.grading.fork_server import ForkServer

    server = ForkServer(device, quiet=not verbose, light=device == "cpu")
    gc.disable()  # nothing of torch is garbage: looking for it takes a tenth of the time
    import torch.fx.experimental.symbolic_shapes  # noqa: F401

    gc.freeze()
    gc.enable()
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
