"""A loop over four heads in each program, in place; heuristics make the direction a constant."""

import torch
import triton
import triton.language as tl

GROUP = 4


@triton.heuristics({"BACK": lambda given: bool(given["BACK"])})
@triton.jit
def _kernel(q, q_row: tl.constexpr, cos, cos_row: tl.constexpr, sin, sin_row: tl.constexpr, s,
            D: tl.constexpr, HEADS: tl.constexpr, BACK: tl.constexpr, GROUP: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    row, group = tl.program_id(0), tl.program_id(1)
    half = D // 2
    col = tl.arange(0, BLOCK)
    keep = col < half
    w = tl.load(sin + (row % s) * sin_row + col, mask=keep, other=0)
    c = tl.load(cos + (row % s) * cos_row + col, mask=keep, other=0)
    if BACK:
        w = -w
    first = group * GROUP
    for head in range(first, min(first + GROUP, HEADS)):
        at = row.to(tl.int64) * q_row + head * D + col
        a = tl.load(q + at, mask=keep, other=0).to(w.dtype)
        b = tl.load(q + at + half, mask=keep, other=0).to(w.dtype)
        tl.store(q + at, a * c - b * w, mask=keep)
        tl.store(q + at + half, b * c + a * w, mask=keep)


def _turn_(rows, cos, sin, s, heads, back):
    d = cos.shape[-1]
    groups, rest = divmod(heads, GROUP)
    if rows.numel():
        _kernel[len(rows), groups + bool(rest)](
            rows, rows.stride(0), cos, cos.stride(0), sin, sin.stride(0), s, d, heads,
            BACK=back, GROUP=GROUP, BLOCK=triton.next_power_of_2(d // 2),
        )  # fmt: skip
    return rows


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, cos, sin):
        batch, s, heads, d = q.shape
        ctx.saved = cos, sin, s, heads
        return _turn_(q.reshape(batch * s, heads * d).clone(), *ctx.saved, False).view(q.shape)

    @staticmethod
    def backward(ctx, grad):
        rows = grad.reshape(-1, grad.shape[2] * grad.shape[3]).clone()
        return _turn_(rows, *ctx.saved, True).view(grad.shape), None, None


def rope(t, freqs, *, tensor_format="sbhd"):
    if tensor_format != "bshd":
        raise NotImplementedError(f"{tensor_format}: batch first alone")
    if freqs.shape[-1] != t.shape[-1]:
        raise NotImplementedError("a part of the features")
    angles = freqs[: t.shape[1], 0, 0]
    if not angles.chunk(2, -1)[0].equal(angles.chunk(2, -1)[1]):
        raise NotImplementedError("angles that differ within a pair")
    return _Rope.apply(t, angles.cos().contiguous(), angles.sin().contiguous())
