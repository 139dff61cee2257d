"""Heads of queries, then of keys, are one axis of the grid; every stride is a constant.

Expected: forward=PASSED backward=UNSUPPORTED
"""

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=("s",))
def _kernel(q, k, cos, sin, q_out, k_out, s, Q_S: tl.constexpr, Q_H: tl.constexpr,
            K_S: tl.constexpr, K_H: tl.constexpr, HALF: tl.constexpr, Q_HEADS: tl.constexpr,
            TOKENS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    head = tl.program_id(0)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    place = tl.max_contiguous(tl.multiple_of(token, TOKENS), TOKENS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    keep = (place < s) & (col < HALF)
    c = tl.load(cos + place * 2 * HALF + col, mask=keep)
    w = tl.load(sin + place * 2 * HALF + col, mask=keep)
    if head < Q_HEADS:
        at = place * Q_S + head * Q_H + col
        a, b = tl.load(q + at, mask=keep), tl.load(q + at + HALF, mask=keep)
        tl.store(q_out + at, a * c - b * w, mask=keep)
        tl.store(q_out + at + HALF, b * c + a * w, mask=keep)
    else:
        at = place * K_S + (head - Q_HEADS) * K_H + col
        a, b = tl.load(k + at, mask=keep), tl.load(k + at + HALF, mask=keep)
        tl.store(k_out + at, a * c - b * w, mask=keep)
        tl.store(k_out + at + HALF, b * c + a * w, mask=keep)


def rope(t, freqs, *, tensor_format="sbhd"):
    if tensor_format == "thd" or t.shape[tensor_format.index("b")] != 1 or not t.is_contiguous():
        raise NotImplementedError("packed sequences, a batch, or strides")
    if freqs.shape[-1] != t.shape[-1]:
        raise NotImplementedError("a part of the features")
    angles = freqs[:, 0, 0]
    if not torch.equal(*angles.chunk(2, -1)):
        raise NotImplementedError("angles that differ within a pair")
    q = t.detach().flatten(0, 1)  # for inference: an output without grad_fn
    s, heads, d = q.shape
    k = q[:, :1].contiguous()
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    if q.numel():
        grid = heads + 1, triton.cdiv(s, 4)
        _kernel[grid](
            q, k, angles.cos().contiguous(), angles.sin().contiguous(), q_out, k_out, s,
            Q_S=q.stride(0), Q_H=q.stride(1), K_S=k.stride(0), K_H=k.stride(1),
            HALF=d // 2, Q_HEADS=heads, TOKENS=4, BLOCK=triton.next_power_of_2(d // 2),
        )  # fmt: skip
    return q_out.view(t.shape)
