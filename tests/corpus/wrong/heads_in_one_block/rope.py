"""A program turns the heads of a token in one block of 64; any further head stays as it is.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
"""

import torch

BLOCK = 64


def rope(t, freqs):
    angles, d2 = freqs[: len(t)], freqs.shape[-1]
    block, others = t[:, :, :BLOCK], t[:, :, BLOCK:]
    a, b = block[..., :d2].chunk(2, -1)
    turned = block[..., :d2] * angles.cos().to(t.dtype)
    turned = turned + torch.cat((-b, a), -1) * angles.sin().to(t.dtype)
    return torch.cat((torch.cat((turned, block[..., d2:]), -1), others), 2)
