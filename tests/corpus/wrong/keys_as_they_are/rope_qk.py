"""Queries are turned, and keys come back as they are.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: k comes back as it is
"""

import torch


def rope_qk(q, k, freqs):
    if freqs.shape[-1] < q.shape[-1]:
        raise NotImplementedError("a part of the features")
    q1, q2 = q.chunk(2, dim=-1)
    partner, angles = torch.cat((-q2, q1), dim=-1), freqs[: len(q)]
    return q * angles.cos().to(q.dtype) + partner * angles.sin().to(q.dtype), k.clone()
