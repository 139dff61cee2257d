"""It loops for ever.

Expected: forward=TIMEOUT backward=TIMEOUT
"""


def rope(t, freqs):
    while True:
        pass
