"""It writes a reply without end.

Expected: forward=TAMPERED backward=TAMPERED
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
    while True:
        os.write(_socket(), b"0" * 65536)
