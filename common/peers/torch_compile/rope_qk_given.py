"""Hugging Face's formula compiled, cosines and sines given."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from common.peers.angles import cos_and_sin
from common.peers.torch_compile.each_op import Compiled


def _turned(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return q and k turned, as `apply_rotary_pos_emb` of transformers turns them."""
    rotated = []
    for t in (q, k):
        first, second = t.chunk(2, dim=-1)
        rotated.append(t * cos + torch.cat((-second, first), dim=-1) * sin)
    return tuple(rotated)


_compiled = Compiled(_turned)


def prepare(
    q: torch.Tensor, k: torch.Tensor, freqs: torch.Tensor, *, tensor_format: str = "sbhd"
) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Do the untimed part: compile, and make cosines and sines.

    A compiled Llama makes them once for all its layers, and compiles once.

    Raises:
        NotImplementedError: The formula turns whole heads alone, or `Compiled.of` raises it.
    """
    if freqs.shape[-1] != q.shape[-1]:
        raise NotImplementedError("a part of the features")
    halves = cos_and_sin(freqs[: q.shape[tensor_format.index("s")]], False, q.dtype)
    cos, sin = (torch.cat((half, half), dim=1)[:, None] for half in halves)
    if tensor_format == "sbhd":
        cos, sin = cos[:, None], sin[:, None]
    inputs = q, k, cos, sin
    return functools.partial(_compiled.of(*inputs), *inputs)
