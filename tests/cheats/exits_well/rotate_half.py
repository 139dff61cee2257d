"""It ends its process, and says that all went well.

Expected: forward=CRASHED backward=CRASHED
"""

import os


def rotate_half(x):
    os._exit(0)
