"""`rope`: rotary position embedding, equal to TransformerEngine's `apply_rotary_pos_emb`.

    out[..., :d2] = t[..., :d2] * cos(angle) + rotate_half(t[..., :d2]) * sin(angle)
    out[..., d2:] = t[..., d2:]

where `angle = freqs[position]`. Every feature has its own angle: the two halves of `freqs` may
differ. A gradient therefore uses the sine of the paired feature: `dx1 = g1 cos1 + g2 sin2`,
`dx2 = g2 cos2 - g1 sin1`.

Sources: `apply_rotary_pos_emb` in `transformer_engine/pytorch/attention/rope.py` of
TransformerEngine 2.14, without its `fused` switch; RoFormer, https://arxiv.org/abs/2104.09864.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor

from common.ops import rotate_half
from common.ops._draw import place, randn
from common.ops._rope_cases import LARGE, TABLE, RopeCase, axes, cases, track_of, twin
from common.spec import ITEMSIZE, Direction, Op, Work


class Rope(Protocol):
    """The signature of every solution."""

    def __call__(
        self,
        t: Tensor,
        freqs: Tensor,
        *,
        tensor_format: str = "sbhd",
        interleaved: bool = False,
        start_positions: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        cp_size: int = 1,
        cp_rank: int = 0,
    ) -> Tensor:
        """Rotate the first d2 features of every head by the angles of its token's position.

        Args:
            t: `[s, b, h, d]` (sbhd), `[b, s, h, d]` (bshd) or `[tokens, h, d]` (thd); bfloat16,
                float16 or float32.
            freqs: float32 `[s2, 1, 1, d2]`, radians; d2 is even and at most d, s2 is larger than
                every used position; requires no gradient.
            tensor_format: `sbhd`, `bshd` or `thd`.
            interleaved: Pair adjacent features instead of the two halves.
            start_positions: int32 `[b]`, the position of each sequence's first token.
            cu_seqlens: int32 `[b + 1]`, the cumulative lengths of a thd tensor's sequences over all
                ranks, such as `[0, 4, 10]` for lengths of 4 and 6.
            cp_size: The number of ranks in context parallelism; not with `start_positions`.
            cp_rank: This rank. `t` holds only this rank's tokens: of the `2 * cp_size` chunks of
                each sequence, the chunks `cp_rank` and `2 * cp_size - 1 - cp_rank`.

        Returns:
            A tensor of t's shape and dtype.
        """


def reference(
    t: Tensor,
    freqs: Tensor,
    *,
    tensor_format: str = "sbhd",
    interleaved: bool = False,
    start_positions: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    cp_size: int = 1,
    cp_rank: int = 0,
) -> Tensor:
    """Rotate in plain torch, with the roundings of TransformerEngine's unfused code."""
    angles = angles_of(t, freqs, tensor_format, start_positions, cu_seqlens, cp_size, cp_rank)
    return rotate(t, angles, interleaved)


def angles_of(
    t: Tensor,
    freqs: Tensor,
    tensor_format: str = "sbhd",
    start_positions: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    cp_size: int = 1,
    cp_rank: int = 0,
) -> Tensor:
    """Return each token's row of freqs, broadcastable to t's other dimensions.

    The shape is `[s, 1, 1, d2]` for sbhd and `[b, s, 1, d2]` for bshd with start_positions.
    """
    assert start_positions is None or cp_size == 1, "start_positions with context parallelism"
    if tensor_format == "thd":
        assert cu_seqlens is not None, "thd needs cu_seqlens"
        positions = _of_tokens(len(t), cu_seqlens // cp_size, start_positions, cp_size, cp_rank)
        return freqs[positions].squeeze(1)
    length = t.shape[tensor_format.index("s")]
    if start_positions is not None:
        angles = torch.cat([freqs[i : i + length] for i in start_positions.tolist()], dim=1)
    elif cp_size > 1:
        chunks = freqs.split(length // 2)
        angles = torch.cat([chunks[cp_rank], chunks[2 * cp_size - 1 - cp_rank]])
    else:
        angles = freqs[:length]
    return angles.transpose(0, 1) if tensor_format == "bshd" else angles


def _of_tokens(
    tokens: int, ends: Tensor, starts: Tensor | None, cp_size: int, cp_rank: int
) -> Tensor:
    """Return the position of each token that this rank holds; `ends` counts only those tokens.

    For example, with `ends = [0, 2, 5]` and no starts, the positions are `[0, 1, 0, 1, 2]`.
    """
    token = torch.arange(tokens, dtype=ends.dtype, device=ends.device)
    # torch 2.11 does not compile a searchsorted in a slice such as `ends[1:]`
    sequence = torch.searchsorted(ends, token, right=True) - 1
    position = token - ends[sequence]
    if cp_size > 1:
        chunk = (ends.diff() // 2)[sequence]
        mirror = 2 * cp_size - 1 - cp_rank
        second = (mirror - 1) * chunk + position
        position = torch.where(position < chunk, cp_rank * chunk + position, second)
    return position if starts is None else position + starts[sequence]


def rotate(t: Tensor, angles: Tensor, interleaved: bool) -> Tensor:
    """Rotate the first `angles.shape[-1]` features of t by the angles; copy the others."""
    # TransformerEngine's unfused code computes cos and sin in float32 and rounds them to t's dtype
    cos, sin = angles.cos().to(t.dtype), angles.sin().to(t.dtype)
    rotated, unrotated = t[..., : angles.shape[-1]], t[..., angles.shape[-1] :]
    rotated = rotated * cos + rotate_half.reference(rotated, interleaved=interleaved) * sin
    return torch.cat((rotated, unrotated), dim=-1)


OPTIONS = ("tensor_format", "interleaved", "cp_size", "cp_rank")
LARGEST_START = 9
"""The largest position of a sequence's first token."""


def draw(case: RopeCase, generator: torch.Generator) -> dict[str, Any]:
    """Draw the arguments of one call; the longest sequence starts at `LARGEST_START`."""
    device = generator.device
    arguments = {
        "t": randn(case.shape, case.dtype, case.layout, generator, case.scale, case.values),
        "freqs": _angles(case, generator),
        **{name: getattr(case, name) for name in OPTIONS},
    }
    if case.lengths:
        ends = torch.tensor((0, *case.lengths), device=device).cumsum(0)
        arguments["cu_seqlens"] = place(ends.to(torch.int32), case.ends_layout)
    if case.starts:
        lengths = case.lengths or (case.s,) * case.b
        size = (len(lengths),)
        starts = torch.randint(LARGEST_START + 1, size, generator=generator, device=device)
        if lengths:
            starts[lengths.index(max(lengths))] = LARGEST_START
        arguments["start_positions"] = place(starts.to(torch.int32), case.starts_layout)
    return arguments


def _angles(case: RopeCase, generator: torch.Generator) -> Tensor:
    """Draw freqs, float32 `[s2, 1, 1, d2]`, for the used positions and any spare positions."""
    device = generator.device
    used = case.positions * case.cp_size + LARGEST_START * case.starts
    if case.angles == "random":
        # Compiler_Study's grid has twice as many positions in freqs as in t
        positions = 2 * used + 1 if case.spare else used
        return randn((positions, 1, 1, case.d2), "float32", case.freqs_layout, generator)
    position = torch.arange(used + 3 * case.spare, device=device, dtype=torch.float32)
    position += {"far": 1_000_000, "paired": 1}.get(case.angles, 0)  # position 0 rotates nothing
    feature, half = torch.arange(case.d2, device=device), max(case.d2 // 2, 1)
    pair = feature // 2 if case.interleaved and case.paired else feature % half
    base = 10_000 + 5_000 * (feature >= case.d2 // 2) * (not case.paired)
    angles = case.rate * torch.outer(position, base ** (-2 * pair / max(case.d2, 1)))
    return place(angles[:, None, None, :], case.freqs_layout)


def work(case: RopeCase, direction: Direction) -> Work:
    """Return the minimum work: read each used angle once; read and write t or its gradient once.

    A rotated element takes two products and a sum; an angle takes a cosine and a sine. Each of
    these counts as one operation. Paired angles are read once for each pair.
    """
    elements = math.prod(case.shape)
    angles = case.positions * case.d2 // (1 + case.paired)
    return Work(
        bytes=2 * elements * ITEMSIZE[case.dtype] + 4 * angles,
        flops=3 * elements * case.d2 // max(case.d, 1) + 2 * angles,
    )


OP = Op(
    name="rope",
    order=1,
    interface=Rope,
    reference=reference,
    differentiable=("t",),
    tracks={
        "standard": "Whole heads, and one angle for both features of a pair (paired), as in nearly "
        "every model; far begins at position 1,000,000, as a decoded token may.",
        "partial": "Only the first d2 features of each head are rotated.",
        "interleaved": "The pairs are adjacent features, not one of each half.",
        "packed": "Sequences without padding (thd): 64, or thousands of which only one is long.",
        "core": "Every feature has an angle of its own, as TransformerEngine's op allows.",
        "extended": "As core, with adjacent pairs, start positions or context parallelism.",
    },
    track_of=track_of,
    cases=cases,
    twin=twin,
    draw=draw,
    work=work,
    workspace=lambda case: 2 * work(case, "forward").bytes,  # measured: 1.8 times these bytes
    split={"output": -2, "t": -2},  # heads, in every format
    axes=axes,
    permutable=("freqs",),
    table=TABLE,
    large=LARGE,
)
