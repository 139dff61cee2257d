"""It returns its argument.

Expected: forward=MUTATED_INPUT backward=MUTATED_INPUT
"""


def rotate_half(x):
    return x
