"""It loops for ever.

Expected: forward=TIMEOUT backward=TIMEOUT
Fails: in every case
"""

import time


def rope(t, freqs):
    while True:
        time.sleep(1)  # a loop that computes would take a core from other tests
