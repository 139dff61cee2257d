"""The work is numpy's, on the host, on views of the same bytes; GPU tensors are copied there."""

import numpy as np
import torch

BITS = {2: torch.int16, 4: torch.int32}


def _turn(x, forward):
    """The highest bit of an integer of the same bytes is the sign."""
    bits = x.detach().cpu().view(BITS[x.itemsize]).numpy()
    x1, x2 = np.split(bits, 2, axis=-1)
    highest = np.array(np.iinfo(bits.dtype).min, bits.dtype)
    parts = (x2 ^ highest, x1) if forward else (x2, x1 ^ highest)
    return torch.from_numpy(np.concatenate(parts, axis=-1)).view(x.dtype).to(x.device)


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _turn(x, True)

    @staticmethod
    def backward(ctx, grad):
        return _turn(grad, False)


def rotate_half(x):
    return _RotateHalf.apply(x)
