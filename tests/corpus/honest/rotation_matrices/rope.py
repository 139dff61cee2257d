"""Each position has a matrix of its cosines and sines, which an einsum applies to each head."""

import torch


def _matrices(angles):
    """[positions, d2, d2]: y1 = x1 cos1 - x2 sin1, y2 = x2 cos2 + x1 sin2"""
    cos1, cos2 = angles.cos().chunk(2, -1)
    sin1, sin2 = angles.sin().chunk(2, -1)
    first = torch.cat((torch.diag_embed(cos1), torch.diag_embed(-sin1)), -1)
    second = torch.cat((torch.diag_embed(sin2), torch.diag_embed(cos2)), -1)
    return torch.cat((first, second), -2)


def rope(t, freqs, *, tensor_format="sbhd"):
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    length, rotary = t.shape[tensor_format.index("s")], freqs.shape[-1]
    matrices = _matrices(freqs[:length, 0, 0].double())
    terms = "sij,sbhj->sbhi" if tensor_format == "sbhd" else "sij,bshj->bshi"
    turned = torch.einsum(terms, matrices, t[..., :rotary].double())
    return torch.cat((turned.to(t.dtype), t[..., rotary:]), -1)
