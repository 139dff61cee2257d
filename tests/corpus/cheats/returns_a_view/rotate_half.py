"""It returns a view of its argument.

Expected: forward=MUTATED_INPUT backward=MUTATED_INPUT
"""


def rotate_half(x):
    return x.view(x.shape)
