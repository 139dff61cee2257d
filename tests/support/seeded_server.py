"""The fork server as tests start it: what a solution's process draws comes from the run's seed.

The product's takes the system's numbers, which no solution can foresee; see sandbox/rotation.py.
"""

import os
import random
import socket
import sys

from common.sandbox import rotation, server

if __name__ == "__main__":
    rotation.urandom = random.Random(int(os.environ["STUDY_TEST_SEED"])).randbytes
    server.run(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)
