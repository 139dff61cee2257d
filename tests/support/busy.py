"""A fork server whose workers get no context of the GPU: `python -m tests.support.busy FD`."""

from __future__ import annotations

import socket
import sys
from typing import NoReturn

from common.arena import Arena
from common.sandbox import server


def mapped(*ticket: object) -> NoReturn:
    """Fail as CUDA does where others' contexts fill its memory."""
    raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable")


if __name__ == "__main__":
    Arena.mapped = mapped  # type: ignore[method-assign]
    server.run(socket.socket(fileno=int(sys.argv[1])))
