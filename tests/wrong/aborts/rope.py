"""It aborts its process, as an assertion in native code would.

Expected: forward=CRASHED backward=CRASHED
"""

import os


def rope(t, freqs):
    os.abort()
