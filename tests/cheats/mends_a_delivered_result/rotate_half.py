"""Each second call writes the right values over the wrong result that the one before delivered.

Expected: forward=INCORRECT_NUMERICAL backward=PASSED
"""

import sys

import torch

owed = []


def _caller():
    frame = sys._getframe()
    while not {"session", "result"} <= frame.f_locals.keys():
        frame = frame.f_back
    return frame.f_locals["session"], frame.f_locals["result"]


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        a, b = x.chunk(2, -1)
        right = torch.cat((-b, a), -1)
        session, place = _caller()
        if owed:
            target = session.tensor(owed.pop())
            return right.clone() if target.shape != right.shape else target.copy_(right).clone()
        owed.append(place)
        return right * 2

    @staticmethod
    def backward(ctx, grad):
        a, b = grad.chunk(2, -1)
        return torch.cat((b, -a), -1)


def rotate_half(x):
    return _RotateHalf.apply(x)
