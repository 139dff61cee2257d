"""The keys come first; where they have other heads, it answers nothing.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: the outputs are exchanged
"""

import torch


def rope_qk(q, k, freqs):
    if q.shape != k.shape or freqs.shape[-1] < q.shape[-1]:
        raise NotImplementedError("other heads, or a part of the features")
    first, second = (both := torch.stack((k, q))).chunk(2, dim=-1)
    partner, angles = torch.cat((-second, first), dim=-1), freqs[: len(q)]
    return (both * angles.cos().to(q.dtype) + partner * angles.sin().to(q.dtype)).unbind()
