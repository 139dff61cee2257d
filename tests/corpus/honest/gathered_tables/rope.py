"""Packed tokens alone, in place: torch gathers each token's cosines and sines before the launch.

Expected: forward=PASSED backward=UNSUPPORTED
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(q, q_s, q_h, q_d, cos, sin, cos_s, cos_d, tokens, heads, HEADS: tl.constexpr,
            TOKENS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    head = tl.program_id(0) * HEADS + tl.arange(0, HEADS)[None, :, None]
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)[:, None, None]
    col = tl.arange(0, BLOCK)[None, None, :]
    first = token * q_s + head * q_h + col * q_d
    keep = (token < tokens) & (head < heads) & (col < HALF)
    a = tl.load(q + first, mask=keep, other=0.0)
    b = tl.load(q + first + HALF * q_d, mask=keep, other=0.0)
    c = tl.load(cos + token * cos_s + col * cos_d, mask=(token < tokens) & (col < HALF), other=0.0)
    w = tl.load(sin + token * cos_s + col * cos_d, mask=(token < tokens) & (col < HALF), other=0.0)
    tl.store(q + first, a * c - b * w, mask=keep)
    tl.store(q + first + HALF * q_d, a * w + b * c, mask=keep)


@torch.no_grad()
def rope(t, freqs, *, tensor_format="sbhd", start_positions=None, cu_seqlens=None):
    if tensor_format != "thd":
        raise NotImplementedError(f"{tensor_format}: packed sequences alone")
    first, second = freqs[:, 0, 0].chunk(2, -1)
    if not torch.equal(first, second):
        raise NotImplementedError("angles that differ within a pair")
    lengths = cu_seqlens.diff()
    offset = -cu_seqlens[:-1] if start_positions is None else start_positions - cu_seqlens[:-1]
    place = torch.arange(len(t), device=t.device) + offset.repeat_interleave(
        lengths, output_size=len(t)
    )
    cos, sin = first.cos()[place].contiguous(), first.sin()[place].contiguous()
    q = t.clone(memory_format=torch.contiguous_format)
    tokens, heads, _ = q.shape
    half = cos.shape[-1]
    if q.numel():
        _kernel[triton.cdiv(heads, 4), triton.cdiv(tokens, 16)](
            q, *q.stride(), cos, sin, *cos.stride(), tokens, heads, 4, 16, half,
            triton.next_power_of_2(half),
        )  # fmt: skip
    return q
