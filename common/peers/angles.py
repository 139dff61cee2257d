"""What the libraries that hold one angle for each pair of features make of `freqs`."""

from __future__ import annotations

import torch


def cos_and_sin(
    freqs: torch.Tensor, interleaved: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """`[s2, d2 / 2]` each, in `dtype`.

    A model makes them once for all its layers, so that this is for `prepare`: it also waits for the
    GPU to tell whether both features of every pair have the same angle.
    """
    flat = freqs.flatten(1)
    first, second = (flat[:, ::2], flat[:, 1::2]) if interleaved else flat.chunk(2, dim=1)
    if not torch.equal(first, second):
        raise NotImplementedError("features of one pair with angles of their own")
    return first.cos().to(dtype), first.sin().to(dtype)
