"""Cosines and sines for libraries that have one angle for each pair of features."""

from __future__ import annotations

import torch


def cos_and_sin(
    freqs: torch.Tensor, interleaved: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cosines and the sines of `freqs`, `[s2, d2 / 2]` each, in `dtype`.

    Call this in `prepare`, since a model makes them once for all its layers. It also waits for the
    GPU, to compare the angles of each pair.

    Raises:
        NotImplementedError: The two features of a pair have different angles.
    """
    flat = freqs.flatten(1)
    first, second = (flat[:, ::2], flat[:, 1::2]) if interleaved else flat.chunk(2, dim=1)
    if not torch.equal(first, second):
        raise NotImplementedError("features of one pair with angles of their own")
    return first.cos().to(dtype), first.sin().to(dtype)


def of_whole_heads(
    q: torch.Tensor, freqs: torch.Tensor, tensor_format: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cosines and the sines of q's positions, `[1, s, d]`, or `[s, 1, d]` for sbhd.

    Raises:
        NotImplementedError: A part of the features turns, or `cos_and_sin` raises it.
    """
    if freqs.shape[-1] != q.shape[-1]:
        raise NotImplementedError("a part of the features")
    length = q.shape[tensor_format.index("s")]
    cos, sin = cos_and_sin(freqs[:length], False, q.dtype)
    dim = tensor_format.index("b")
    return torch.cat((cos, cos), dim=1).unsqueeze(dim), torch.cat((sin, sin), dim=1).unsqueeze(dim)
