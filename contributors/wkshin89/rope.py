"""Plain torch around a rotate_half kernel, nothing fused.

The state of a migration after its first step. A fused kernel can gain the difference to it.
"""

import torch
from kernels import RotateHalf


def _positions(
    t: torch.Tensor,
    tensor_format: str,
    start_positions: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    cp_size: int,
    cp_rank: int,
) -> torch.Tensor:
    """Return each token's position in its whole sequence, in a shape that broadcasts over tokens.

    sbhd: [s, 1] or [s, b]; bshd: [1, s] or [b, s]; thd: [tokens]. The axis is b only where
    `start_positions` is given.
    """
    start = 0
    if tensor_format == "thd":
        bounds = (cu_seqlens // cp_size).long()
        token = torch.arange(t.shape[0], device=t.device)
        sequence = torch.bucketize(token, bounds[1:], right=True)
        index, length = token - bounds[sequence], bounds.diff()[sequence]
        if start_positions is not None:
            start = start_positions[sequence]
    elif tensor_format in ("sbhd", "bshd"):
        along, other = (0, 1) if tensor_format == "sbhd" else (1, 0)
        length = t.shape[along]
        index = torch.arange(length, device=t.device).unsqueeze(other)
        if start_positions is not None:
            start = start_positions.unsqueeze(along)
    else:
        raise NotImplementedError(f"tensor_format {tensor_format!r}")
    # This rank holds chunks cp_rank and 2 * cp_size - 1 - cp_rank of each sequence, one after the
    # other. `skipped` counts the chunks before a token that other ranks hold; 0 if cp_size is 1.
    chunk = length // 2
    skipped = torch.where(index < chunk, cp_rank, 2 * cp_size - 2 - cp_rank)
    return start + index + skipped * chunk


def rope(
    t: torch.Tensor,
    freqs: torch.Tensor,
    *,
    tensor_format: str = "sbhd",
    interleaved: bool = False,
    start_positions: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    cp_size: int = 1,
    cp_rank: int = 0,
) -> torch.Tensor:
    """Return t * cos(freqs) + rotate_half(t) * sin(freqs), t itself from feature d2 on.

    t: [s, b, h, d], [b, s, h, d] or [tokens, h, d] by `tensor_format` (sbhd, bshd, thd).
    freqs: float32 [s2, 1, 1, d2], d2 <= d; takes no gradient.
    start_positions: [b], the position of each sequence's first token. cu_seqlens: [b + 1], the
    bounds of the whole sequences in thd. cp_size, cp_rank: t holds this rank's two chunks of each
    sequence.
    Returns t's shape and dtype.
    """
    positions = _positions(t, tensor_format, start_positions, cu_seqlens, cp_size, cp_rank)
    angles = freqs.detach()[positions, 0, 0].unsqueeze(-2)  # [..., 1, d2], for all heads
    # Rounded to t's dtype, as in the eager original. Each operation below is a pass over memory.
    cos, sin = angles.cos().to(t.dtype), angles.sin().to(t.dtype)
    rotated, rest = t.split((freqs.shape[-1], t.shape[-1] - freqs.shape[-1]), dim=-1)
    rotated = rotated * cos + RotateHalf.apply(rotated, interleaved) * sin
    return torch.cat((rotated, rest), dim=-1)
