"""It ends its process with status 0.

Expected: forward=CRASHED backward=CRASHED
"""

import os


def rotate_half(x):
    os._exit(0)
