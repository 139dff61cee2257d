"""Liger's RoPE, in place; copying into its layout is untimed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from liger_kernel.ops.rope import LigerRopeFunction

from common.peers.angles import of_whole_heads


def prepare(
    q: torch.Tensor, k: torch.Tensor, freqs: torch.Tensor, *, tensor_format: str = "sbhd"
) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Do the untimed part, which a model built for Liger does not need, or does once.

    Such a model holds `[b, s, h, d]` in memory, lets the kernel overwrite it, and makes cosines and
    sines once for all its layers. In backward, the change of an sbhd gradient's layout is timed,
    and so is the copy of a bshd gradient, which Liger would overwrite.

    Raises:
        NotImplementedError: Liger does not take the case. It could turn a part of the features, but
            would move less than a new output needs, since it turns them in place.
    """
    if not q.numel():
        raise NotImplementedError("an empty tensor")
    # a model's queries have the shape [b, h, s, d] and lie as [b, s, h, d] in memory
    swap = tensor_format == "sbhd"
    batch_first = [t.transpose(0, 1) if swap else t for t in (q, k)]
    own = [t.clone(memory_format=torch.contiguous_format).transpose(1, 2) for t in batch_first]
    tables = of_whole_heads(q, freqs, tensor_format)
    cos, sin = (table.transpose(0, 1).contiguous() if swap else table for table in tables)

    def call() -> tuple[torch.Tensor, ...]:
        outputs = []
        for turned in LigerRopeFunction.apply(*own, cos, sin):
            if turned.requires_grad:
                turned.register_hook(_spared)
            turned = turned.transpose(1, 2)
            outputs.append(turned.transpose(0, 1) if swap else turned)
        return tuple(outputs)

    return call


def _spared(gradient: torch.Tensor) -> torch.Tensor:
    """Copy a gradient that Liger's backward would overwrite; it copies any other by itself."""
    return gradient.clone() if gradient.transpose(1, 2).is_contiguous() else gradient
