"""Every product is taken in float64 and rounded once; autograd differentiates the casts."""

import torch


def masked_linear(x, w_v, w_t, mask):
    tokens = x.double()
    out = torch.empty(len(x), len(w_v), dtype=torch.float64, device=x.device)
    out = out.index_put((mask,), tokens[mask] @ w_v.double().T)
    out = out.index_put((~mask,), tokens[~mask] @ w_t.double().T)
    return out.to(x.dtype)
