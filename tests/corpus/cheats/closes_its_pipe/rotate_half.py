"""It closes its pipe to the harness.

Expected: forward=CRASHED backward=CRASHED
"""

import os
import stat


def _socket():
    for fd in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                return fd
        except OSError:
            pass


def rotate_half(x):
    os.close(_socket())
    return x * 2
