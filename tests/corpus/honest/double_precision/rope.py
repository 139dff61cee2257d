"""Angles, products and sums are float64 in the kernel; only the result is rounded to t's dtype."""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(
    t, freqs, out, rows, heads, inner, outer_is_s, freqs_row, freqs_col,
    D: tl.constexpr, D2: tl.constexpr, TRANSPOSED: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """y1 = x1 cos1 - x2 sin1, y2 = x2 cos2 + x1 sin2, for ROWS heads"""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    token = row // heads
    position = tl.where(outer_is_s != 0, token // inner, token % inner)
    col = tl.arange(0, BLOCK)[None, :]
    keep = (row < rows) & (col < D2 // 2)
    angle = freqs + position * freqs_row + col * freqs_col
    a1 = tl.load(angle, mask=keep, other=0).to(tl.float64)
    a2 = tl.load(angle + D2 // 2 * freqs_col, mask=keep, other=0).to(tl.float64)
    at = row * D + col
    x1 = tl.load(t + at, mask=keep, other=0).to(tl.float64)
    x2 = tl.load(t + at + D2 // 2, mask=keep, other=0).to(tl.float64)
    sin1, sin2 = tl.sin(a1), tl.sin(a2)
    if TRANSPOSED:
        sin1, sin2 = -sin2, -sin1
    tl.store(out + at, x1 * tl.cos(a1) - x2 * sin1, mask=keep)
    tl.store(out + at + D2 // 2, x2 * tl.cos(a2) + x1 * sin2, mask=keep)
    if D > D2:
        col = D2 + tl.arange(0, REST)[None, :]
        keep = (row < rows) & (col < D)
        tl.store(out + row * D + col, tl.load(t + row * D + col, mask=keep), mask=keep)


def _launch(t, freqs, s_first, transposed):
    t = t.contiguous()
    out = torch.empty_like(t)
    if t.numel():
        _, inner, heads, d = t.shape
        d2 = freqs.shape[-1]
        block, rest = triton.next_power_of_2(d2 // 2), triton.next_power_of_2(max(d - d2, 1))
        rows, each = t.numel() // d, max(1024 // block, 1)
        _kernel[(triton.cdiv(rows, each),)](
            t, freqs, out, rows, heads, inner, int(s_first), freqs.stride(0), freqs.stride(-1),
            d, d2, transposed, each, block, rest,
        )  # fmt: skip
    return out


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, freqs, s_first):
        ctx.save_for_backward(freqs)
        ctx.s_first = s_first
        return _launch(t, freqs, s_first, False)

    @staticmethod
    def backward(ctx, grad):
        return _launch(grad, *ctx.saved_tensors, ctx.s_first, True), None, None


def rope(t, freqs, *, tensor_format="sbhd"):
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    return _Rope.apply(t, freqs, tensor_format == "sbhd")
