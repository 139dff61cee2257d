"""Liger's RoPE, in place on its own layout; copying into that layout is not timed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from liger_kernel.ops.rope import LigerRopeFunction

from common.peers.angles import cos_and_sin


def prepare(
    t: torch.Tensor, freqs: torch.Tensor, *, tensor_format: str = "sbhd"
) -> Callable[[], torch.Tensor]:
    """Not timed: what a model that is built for Liger does not do, or does once for all layers.

    It holds `[b, s, h, d]` in memory, lets the kernel write over it, and has cosines and sines at
    hand. In backward the change of an sbhd gradient's layout is timed, and a copy of a bshd one,
    since it is not ours to write over. Liger turns queries and keys together: here one head of
    keys, of which nothing is used, goes with every call, and its share of the time is timed too.
    """
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    # a model's queries: [b, h, s, d] to look at, [b, s, h, d] in memory
    batch_first = t.transpose(0, 1) if tensor_format == "sbhd" else t
    queries = batch_first.clone(memory_format=torch.contiguous_format).transpose(1, 2)
    if not queries.numel():
        raise NotImplementedError("an empty tensor")
    batch, _, length, width = queries.shape
    keys = queries.new_zeros(batch, length, 1, width).transpose(1, 2)
    halves = cos_and_sin(freqs[:length], False, t.dtype)
    cos, sin = (torch.cat((half, half), dim=1)[None] for half in halves)

    def call() -> torch.Tensor:
        turned: torch.Tensor = LigerRopeFunction.apply(queries, keys, cos, sin)[0]
        if turned.requires_grad:
            turned.register_hook(_spared)
        turned = turned.transpose(1, 2)
        return turned.transpose(0, 1) if tensor_format == "sbhd" else turned

    return call


def rope(t: torch.Tensor, freqs: torch.Tensor, *, tensor_format: str = "sbhd") -> torch.Tensor:
    return prepare(t, freqs, tensor_format=tensor_format)()


def _spared(gradient: torch.Tensor) -> torch.Tensor:
    """Backward writes over a gradient that lies as it wants it, and copies any other."""
    return gradient.clone() if gradient.transpose(1, 2).is_contiguous() else gradient
