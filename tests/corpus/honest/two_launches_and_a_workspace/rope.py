"""A launch fills a workspace of the module with cos and sin, another rotates, each direction."""

import torch
import triton
import triton.language as tl

WORKSPACES = {}


def _workspace(device, elements):
    """Memory of the device's current stream, which grows; nothing in it outlives a call."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    held = WORKSPACES.get((device, stream))
    if held is None or held.numel() < elements:
        held = torch.empty(max(elements, 4096), dtype=torch.float32, device=device)
        WORKSPACES[device, stream] = held
    return held


@triton.jit
def _tables(freqs, table, elements, freqs_row, freqs_col, D2: tl.constexpr, BLOCK: tl.constexpr):
    """table[0] = cos(freqs), table[1] = sin(freqs)"""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = at < elements
    angle = tl.load(freqs + at // D2 * freqs_row + at % D2 * freqs_col, mask=keep, other=0)
    tl.store(table + at, tl.cos(angle), mask=keep)
    tl.store(table + elements + at, tl.sin(angle), mask=keep)


@triton.jit
def _rotate(
    t, table, out, elements, tables, heads, inner, outer_is_s, D: tl.constexpr, D2: tl.constexpr,
    TRANSPOSED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y1 = x1 cos1 - x2 sin1, y2 = x2 cos2 + x1 sin2, element by element of the flat t"""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = at < elements
    col, token = at % D, at // D // heads
    position = tl.where(outer_is_s != 0, token // inner, token % inner)
    x = tl.load(t + at, mask=keep, other=0)
    turned, first = keep & (col < D2), col < D2 // 2
    shift = tl.where(first, D2 // 2, -(D2 // 2))
    partner = tl.load(t + at + shift, mask=turned, other=0).to(tl.float32)
    angle = position * D2 + col
    cos = tl.load(table + angle, mask=turned, other=1)
    sin = tl.load(table + tables + angle + (shift if TRANSPOSED else 0), mask=turned, other=0)
    sign = tl.where(first, -1, 1) * (-1 if TRANSPOSED else 1)
    y = x.to(tl.float32) * cos + sign * partner * sin
    tl.store(out + at, tl.where(turned, y, x.to(tl.float32)), mask=keep)


def _launch(t, freqs, s_first, transposed):
    t = t.contiguous()
    out = torch.empty_like(t)
    if t.numel():
        outer, inner, heads, d = t.shape
        d2 = freqs.shape[-1]
        tables = (outer if s_first else inner) * d2
        table = _workspace(t.device, 2 * tables)
        _tables[(triton.cdiv(tables, 1024),)](
            freqs, table, tables, freqs.stride(0), freqs.stride(-1), d2, 1024
        )
        _rotate[(triton.cdiv(t.numel(), 1024),)](
            t, table, out, t.numel(), tables, heads, inner, int(s_first), d, d2, transposed, 1024
        )
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
