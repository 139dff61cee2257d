"""fla's rotary; copying into its batch-first layout untimed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from fla.modules.rotary import rotary_embedding

from common.peers.angles import cos_and_sin

WIDEST = 256


def prepare(
    t: torch.Tensor, freqs: torch.Tensor, *, tensor_format: str = "sbhd", interleaved: bool = False,
    start_positions: torch.Tensor | None = None, cu_seqlens: torch.Tensor | None = None,
) -> Callable[[], torch.Tensor]:  # fmt: skip
    """Do the untimed part, which a model built for the library does not need, or does once.

    Such a model holds `[b, s, h, d]`, one long sequence where several are packed, and makes cosines
    and sines once for all its layers. In backward, the change of an sbhd gradient's layout is
    timed. The output is new memory.

    Raises:
        NotImplementedError: The library does not take the case.
    """
    if t.shape[-1] > WIDEST:
        raise NotImplementedError(f"{t.shape[-1]} features in a head, more than {WIDEST}")
    if not t.numel():
        raise NotImplementedError("an empty tensor")
    offsets: int | torch.Tensor = 0 if start_positions is None else start_positions
    if cu_seqlens is None:
        x = (t.transpose(0, 1) if tensor_format == "sbhd" else t).contiguous()
    else:
        x = t[None].contiguous()
        # with one start for all, the library would need a position for every packed token
        offsets = torch.zeros_like(cu_seqlens[1:]) if start_positions is None else start_positions
    cos, sin = cos_and_sin(freqs, interleaved, t.dtype)

    def call() -> torch.Tensor:
        turned: torch.Tensor = rotary_embedding(
            x, cos, sin, interleaved, seqlen_offsets=offsets, cu_seqlens=cu_seqlens
        )
        if tensor_format == "thd":
            return turned[0]
        return turned.transpose(0, 1) if tensor_format == "sbhd" else turned

    return call
