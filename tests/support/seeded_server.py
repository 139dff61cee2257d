"""The fork server as tests start it: what a solution's process draws comes from the run's seed.

The product's takes the system's numbers, which no solution can foresee; see sandbox/rotation.py.
`STUDY_TEST_SERVER` may name a change of the processes.
"""

import os
import random
import socket
import sys

from common.arena import Arena
from common.sandbox import process, rotation, server


def mapped(*ticket):
    """Fail as CUDA does where others' contexts fill its memory."""
    raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable")


CHANGES = {
    "busy": (Arena, "mapped", mapped),
    # they may do what their user may, as where the kernel cannot confine them
    "unconfined": (process, "confine", lambda libc: None),
}

if __name__ == "__main__":
    rotation.urandom = random.Random(int(os.environ["STUDY_TEST_SEED"])).randbytes
    if change := os.environ.get("STUDY_TEST_SERVER"):
        setattr(*CHANGES[change])
    server.run(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)
