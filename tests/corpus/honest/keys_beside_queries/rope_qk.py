"""Both outputs are views of one buffer, the keys' heads behind the queries'."""

import torch


def rope_qk(q, k, freqs):
    if freqs.shape[-1] < q.shape[-1]:
        raise NotImplementedError("a part of the features")
    first, second = (both := torch.cat((q, k), dim=2)).chunk(2, dim=-1)
    partner, angles = torch.cat((-second, first), dim=-1), freqs[: len(q)]
    turned = both * angles.cos().to(q.dtype) + partner * angles.sin().to(q.dtype)
    return turned.split((q.shape[2], k.shape[2]), dim=2)
