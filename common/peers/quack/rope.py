"""quack's rotary, a CuTe kernel, on t as it lies."""

from __future__ import annotations

from collections.abc import Callable

import torch
from quack.rotary import apply_rotary_emb

from common.peers.angles import cos_and_sin

WIDEST = 512
MULTIPLE = 8
ALIGNMENT = 16


def prepare(
    t: torch.Tensor, freqs: torch.Tensor, *, tensor_format: str = "sbhd", interleaved: bool = False,
    start_positions: torch.Tensor | None = None, cu_seqlens: torch.Tensor | None = None,
) -> Callable[[], torch.Tensor]:  # fmt: skip
    """Do the untimed part: make cosines and sines, and copy a t that quack cannot read.

    A model makes cosines and sines once for all its layers. quack reads a contiguous t in place, in
    any format. Its users know the longest packed sequence; here freqs bound it.

    Raises:
        NotImplementedError: quack does not take the case.
    """
    if not t.is_cuda:
        raise NotImplementedError("needs a GPU")
    for width in (t.shape[-1], freqs.shape[-1]):
        if width % MULTIPLE:
            raise NotImplementedError(f"{width} features, no multiple of {MULTIPLE}")
    if t.shape[-1] > WIDEST:
        raise NotImplementedError(f"{t.shape[-1]} features in a head, more than {WIDEST}")
    readable = t.is_contiguous() and t.data_ptr() % ALIGNMENT == 0
    t = t if readable else t.clone(memory_format=torch.contiguous_format)
    x = t.transpose(0, 1) if tensor_format == "sbhd" else t
    cos, sin = cos_and_sin(freqs, interleaved, t.dtype)
    longest = None if cu_seqlens is None else min(len(t), len(freqs))
    packed = {"seqlen_offsets": start_positions, "cu_seqlens": cu_seqlens, "max_seqlen": longest}

    def call() -> torch.Tensor:
        turned: torch.Tensor = apply_rotary_emb(x, cos, sin, interleaved, **packed)
        return turned.transpose(0, 1) if tensor_format == "sbhd" else turned

    return call
