"""A colon is missing, so the file does not parse.

Expected: forward=COMPILE_ERROR backward=COMPILE_ERROR
"""


def rope(t, freqs)
    return t
