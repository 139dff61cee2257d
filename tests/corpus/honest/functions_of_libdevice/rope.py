"""cos and sin are libdevice's, imported as public kernels do; a program rotates a token's head."""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _rotate(
    t, freqs, out, heads, inner, freqs_row, freqs_col, D: tl.constexpr, D2: tl.constexpr,
    S_FIRST: tl.constexpr, BACKWARD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y1 = x1 cos1 - x2 sin1, y2 = x2 cos2 + x1 sin2; backward is the transpose"""
    row = tl.program_id(0).to(tl.int64)
    token = row // heads
    position = token // inner if S_FIRST else token % inner
    half: tl.constexpr = D2 // 2
    first = tl.arange(0, BLOCK)
    second = first + half
    pairs = first < half
    x1 = tl.load(t + row * D + first, mask=pairs).to(tl.float32)
    x2 = tl.load(t + row * D + second, mask=pairs).to(tl.float32)
    angle1 = tl.load(freqs + position * freqs_row + first * freqs_col, mask=pairs)
    angle2 = tl.load(freqs + position * freqs_row + second * freqs_col, mask=pairs)
    cos1, cos2 = libdevice.cos(angle1), libdevice.cos(angle2)
    sin1, sin2 = libdevice.sin(angle1), libdevice.sin(angle2)
    y1 = x1 * cos1 + x2 * (sin2 if BACKWARD else -sin1)
    y2 = x2 * cos2 + x1 * (-sin1 if BACKWARD else sin2)
    tl.store(out + row * D + first, y1, mask=pairs)
    tl.store(out + row * D + second, y2, mask=pairs)
    rest = D2 + first
    tl.store(out + row * D + rest, tl.load(t + row * D + rest, mask=rest < D), mask=rest < D)


def _launch(t, freqs, s_first, backward):
    t = t.contiguous()
    out = torch.empty_like(t)
    if t.numel():
        _, inner, heads, d = t.shape
        d2 = freqs.shape[-1]
        block = triton.next_power_of_2(max(d2 // 2, d - d2))
        _rotate[(t.numel() // d,)](
            t, freqs, out, heads, inner, freqs.stride(0), freqs.stride(-1), d, d2, s_first,
            backward, block,
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
