"""A fork server whose workers get no context of the GPU, as where others' contexts fill its memory.

`python -m tests.support.busy FD`, in the place of `common.sandbox.server`.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

from common.arena import Arena
from common.sandbox import server


def mapped(*ticket: Any) -> Arena:
    """Fail as CUDA does."""
    raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable")


if __name__ == "__main__":
    Arena.mapped = mapped  # type: ignore[method-assign]
    server.run(socket.socket(fileno=int(sys.argv[1])))
