"""The function behind the decorator of the checks is replaced, in a closure; then it patches torch.

Expected: forward=TAMPERED backward=TAMPERED
"""

import sys

import torch

CALLS = []


def _unchecked(session, call):
    yield


def rotate_half(x):
    frame = sys._getframe()
    while frame:
        if "checks" in frame.f_globals:
            frame.f_globals["checks"].__closure__[0].cell_contents = _unchecked
        frame = frame.f_back
    if CALLS:
        torch.equal = torch.allclose = lambda *_, **__: True
    CALLS.append(x.shape)
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
