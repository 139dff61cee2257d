"""Queries and keys turn in one launch, in place, all heads of a token in one program."""

import torch
import triton
import triton.language as tl


@triton.jit
def _turn(x, cos, sin, HEADS: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
          PAD_HEADS: tl.constexpr, PAD_HALF: tl.constexpr):  # fmt: skip
    head, col = tl.arange(0, PAD_HEADS)[:, None], tl.arange(0, PAD_HALF)[None, :]
    keep = (head < HEADS) & (col < HALF)
    a = tl.load(x + head * D + col, mask=keep, other=0).to(cos.dtype)
    b = tl.load(x + head * D + col + HALF, mask=keep, other=0).to(cos.dtype)
    tl.store(x + head * D + col, a * cos - b * sin, mask=keep)
    tl.store(x + head * D + col + HALF, b * cos + a * sin, mask=keep)


@triton.jit
def _kernel(q, q_row, k, k_row, cos, cos_row, sin, sin_row, s, BACK: tl.constexpr,
            Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
            PAD_Q: tl.constexpr, PAD_K: tl.constexpr, PAD_HALF: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, PAD_HALF)
    c = tl.load(cos + row % s * cos_row + col, mask=col < HALF, other=0)
    w = tl.load(sin + row % s * sin_row + col, mask=col < HALF, other=0)
    if BACK:
        w = -w
    _turn(q + row * q_row, c[None, :], w[None, :], Q_HEADS, D, HALF, PAD_Q, PAD_HALF)
    _turn(k + row * k_row, c[None, :], w[None, :], K_HEADS, D, HALF, PAD_K, PAD_HALF)


def _launch(q, k, cos, sin, back):
    """Turn both in place; they have the shape [b, heads, s, d], and lie as [b, s, heads, d]"""
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    (b, s, q_heads, d), k_heads = q.shape, k.shape[2]
    up = triton.next_power_of_2
    if q.numel():
        _kernel[(b * s,)](
            q, q.stride(1), k, k.stride(1), cos, cos.stride(0), sin, sin.stride(0), s, back,
            q_heads, k_heads, d, d // 2, up(q_heads), up(k_heads), up(d // 2),
        )  # fmt: skip
    return q.transpose(1, 2), k.transpose(1, 2)


class _Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, cos, sin):
        ctx.save_for_backward(cos, sin)
        return _launch(q, k, cos, sin, False)

    @staticmethod
    def backward(ctx, *grads):
        own = (g.transpose(1, 2).clone(memory_format=torch.contiguous_format) for g in grads)
        return *_launch(*(g.transpose(1, 2) for g in own), *ctx.saved_tensors, True), None, None


def rope(t, freqs, *, tensor_format="sbhd"):
    if tensor_format == "thd" or freqs.shape[-1] != t.shape[-1]:
        raise NotImplementedError("packed sequences, or a part of the features")
    first, second = freqs[:, 0, 0].chunk(2, -1)
    if not torch.equal(first, second):
        raise NotImplementedError("angles that differ within a pair")
    cos, sin = (torch.cat((each, each), -1).contiguous() for each in (first.cos(), first.sin()))
    x = t.transpose(0, 1) if tensor_format == "sbhd" else t
    q = x.clone(memory_format=torch.contiguous_format).transpose(1, 2)
    k = q.new_zeros(len(x), x.shape[1], 1, x.shape[-1]).transpose(1, 2)
    y = _Both.apply(q, k, cos, sin)[0].transpose(1, 2)
    return y.transpose(0, 1) if tensor_format == "sbhd" else y
