"""It raises an exception.

Expected: forward=RUNTIME_ERROR backward=RUNTIME_ERROR
"""


def rope(t, freqs):
    raise RuntimeError("the angles have left the circle")
