"""Liger's RoPE, in place; copying into its layout is untimed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from liger_kernel.ops.rope import LigerRopeFunction

from common.peers.angles import cos_and_sin


def prepare(
    t: torch.Tensor, freqs: torch.Tensor, *, tensor_format: str = "sbhd"
) -> Callable[[], torch.Tensor]:
    """Do the untimed part, which a model built for Liger does not need, or does once.

    Such a model holds `[b, s, h, d]` in memory, lets the kernel overwrite it, and makes cosines and
    sines once for all its layers. In backward, the change of an sbhd gradient's layout is timed,
    and so is the copy of a bshd gradient, which Liger would overwrite. Liger rotates queries and
    keys together, so one unused head of keys goes with every call and is timed too.

    Raises:
        NotImplementedError: Liger does not take the case.
    """
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    if freqs.shape[-1] != t.shape[-1]:
        # what passes through would stay where it is, which moves less than a new output needs
        raise NotImplementedError("a part of the features: it turns them in place")
    # a model's queries have the shape [b, h, s, d] and lie as [b, s, h, d] in memory
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


def _spared(gradient: torch.Tensor) -> torch.Tensor:
    """Copy a gradient that Liger's backward would overwrite; it copies any other by itself."""
    return gradient.clone() if gradient.transpose(1, 2).is_contiguous() else gradient
