"""Its process aborts, as after a failed assertion in native code.

Expected: forward=CRASHED backward=CRASHED
Fails: in every case
"""

import os


def rope(t, freqs):
    os.abort()
