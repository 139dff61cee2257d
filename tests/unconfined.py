"""A fork server whose workers may do what their user may, as where the kernel cannot confine them.

`python -m tests.unconfined FD`, in the place of `common.inside`; see test_cheats.py.
"""

from __future__ import annotations

import socket
import sys

from common import inside

if __name__ == "__main__":
    inside.confine = lambda libc: None
    inside.fork_server(socket.socket(fileno=int(sys.argv[1])))
