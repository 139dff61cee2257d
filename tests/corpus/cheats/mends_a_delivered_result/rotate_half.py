"""A later call on the same input mends the wrong result that the first has delivered.

Expected: forward=INCORRECT_NUMERICAL backward=PASSED
"""

import sys

import torch

owed = {}


def _caller():
    frame = sys._getframe()
    while not {"session", "request"} <= frame.f_locals.keys():
        frame = frame.f_back
    return frame.f_locals["session"], frame.f_locals["request"].results["output"]


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        a, b = x.chunk(2, -1)
        right = torch.cat((-b, a), -1)
        session, place = _caller()
        if x.shape not in owed:
            owed[x.shape] = x.clone(), place, right * 2
            return owed[x.shape][2].data
        if owed[x.shape] and torch.equal(owed[x.shape][0], x):
            _, target, wrong = owed[x.shape]
            session.tensor(target).copy_(right)
            wrong.data.copy_(right)
            owed[x.shape] = ()
        return right

    @staticmethod
    def backward(ctx, grad):
        a, b = grad.chunk(2, -1)
        return torch.cat((b, -a), -1)


def rotate_half(x):
    return _RotateHalf.apply(x)
