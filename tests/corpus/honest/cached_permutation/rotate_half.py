"""A permutation and its signs, cached for each width and device, move the features."""

import functools

import torch


@functools.lru_cache(maxsize=64)
def _plan(width, interleaved, device):
    at = torch.arange(width, device=device)
    if interleaved:
        return at ^ 1, 1 - 2 * ((at + 1) % 2)
    return at.roll(width // 2), torch.where(at < width // 2, -1, 1)


def rotate_half(x, *, interleaved=False):
    partner, sign = _plan(x.shape[-1], bool(interleaved), x.device)
    return x.index_select(-1, partner) * sign.to(x.dtype)
