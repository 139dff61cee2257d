"""It loops for ever.

Expected: forward=TIMEOUT backward=TIMEOUT
Fails: in every case
"""


def rope(t, freqs):
    while True:
        pass
