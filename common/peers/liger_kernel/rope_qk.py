"""Liger's RoPE, in place; copying into its layout is untimed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from liger_kernel.ops.rope import LigerRopeFunction

from common.peers.angles import cos_and_sin


def prepare(
    q: torch.Tensor, k: torch.Tensor, freqs: torch.Tensor, *, tensor_format: str = "sbhd"
) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Do the untimed part, which a model built for Liger does not need, or does once.

    Such a model holds `[b, s, h, d]` in memory, lets the kernel overwrite it, and makes cosines and
    sines once for all its layers. In backward, the change of an sbhd gradient's layout is timed,
    and so is the copy of a bshd gradient, which Liger would overwrite.

    Raises:
        NotImplementedError: Liger does not take the case.
    """
    if freqs.shape[-1] != q.shape[-1]:
        # what passes through would stay where it is, which moves less than a new output needs
        raise NotImplementedError("a part of the features: it turns them in place")
    if not q.numel():
        raise NotImplementedError("an empty tensor")
    swap = tensor_format == "sbhd"
    # a model's queries have the shape [b, h, s, d] and lie as [b, s, h, d] in memory
    own = [(t.transpose(0, 1) if swap else t).clone(memory_format=torch.contiguous_format)
           for t in (q, k)]  # fmt: skip
    queries, keys = (t.transpose(1, 2) for t in own)
    halves = cos_and_sin(freqs[: queries.shape[2]], False, q.dtype)
    cos, sin = (torch.cat((half, half), dim=1)[None] for half in halves)

    def call() -> tuple[torch.Tensor, ...]:
        outputs = []
        for turned in LigerRopeFunction.apply(queries, keys, cos, sin):
            if turned.requires_grad:
                turned.register_hook(_spared)
            turned = turned.transpose(1, 2)
            outputs.append(turned.transpose(0, 1) if swap else turned)
        return tuple(outputs)

    return call


def _spared(gradient: torch.Tensor) -> torch.Tensor:
    """Copy a gradient that Liger's backward would overwrite; it copies any other by itself."""
    return gradient.clone() if gradient.transpose(1, 2).is_contiguous() else gradient
