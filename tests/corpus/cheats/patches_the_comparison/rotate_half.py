"""It patches a copy of the numeric rule. Harmless: another process compares the results.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
"""

from common.grading import compare, tolerance

compare.check_values = tolerance.check_values = lambda *args: (None, 1.0)


def rotate_half(x):
    return x * 2
