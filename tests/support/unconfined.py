"""A fork server whose workers may do what their user may, as where the kernel cannot confine them.

`python -m tests.support.unconfined FD`, in the place of `common.sandbox.server`; see
tests/corpus/test_cheats.py.
"""

from __future__ import annotations

import socket
import sys

from common.sandbox import process, server

if __name__ == "__main__":
    process.confine = lambda libc: None
    server.run(socket.socket(fileno=int(sys.argv[1])))
