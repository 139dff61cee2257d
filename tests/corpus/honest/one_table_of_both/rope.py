"""Cosines and sines lie in one table, in t's dtype; int64 positions choose its rows, in place.

Expected: forward=PASSED backward=UNSUPPORTED
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(positions, q, table, q_row, HEADS: tl.constexpr, D: tl.constexpr, D2: tl.constexpr,
            NEIGHBOURS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    token = tl.program_id(0)
    row = table + tl.load(positions + token) * D2
    HALF: tl.constexpr = D2 // 2
    for i in range(tl.cdiv(HEADS * HALF, BLOCK)):
        each = i * BLOCK + tl.arange(0, BLOCK)
        keep = each < HEADS * HALF
        head, pair = each // HALF, each % HALF
        c = tl.load(row + pair, mask=keep, other=0.0)
        w = tl.load(row + HALF + pair, mask=keep, other=0.0)
        at = q + token.to(tl.int64) * q_row + head * D
        if NEIGHBOURS:
            first, second = at + 2 * pair, at + 2 * pair + 1
        else:
            first, second = at + pair, at + HALF + pair
        a, b = tl.load(first, mask=keep, other=0.0), tl.load(second, mask=keep, other=0.0)
        tl.store(first, a * c - b * w, mask=keep)
        tl.store(second, b * c + a * w, mask=keep)


def rope(t, freqs, *, tensor_format="sbhd", interleaved=False, start_positions=None):
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    angles = freqs[:, 0, 0]
    first, second = (angles[:, ::2], angles[:, 1::2]) if interleaved else angles.chunk(2, -1)
    if not torch.equal(first, second):
        raise NotImplementedError("angles that differ within a pair")
    table = torch.cat((first.cos(), first.sin()), -1).to(t.dtype)
    s, b = (t.shape[tensor_format.index(each)] for each in "sb")
    positions = torch.arange(s, device=t.device)[:, None].expand(s, b)
    if start_positions is not None:
        positions = positions + start_positions
    if tensor_format == "bshd":
        positions = positions.T
    q = t.detach().clone(memory_format=torch.contiguous_format)
    heads, d = t.shape[2:]
    flat = q.view(s * b, heads * d)
    if q.numel():
        _kernel[(s * b,)](
            positions.flatten(), flat, table, flat.stride(0), heads, d, angles.shape[-1],
            interleaved, 64,
        )  # fmt: skip
    return q
