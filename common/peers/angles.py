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
