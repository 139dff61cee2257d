"""Blocks of heads and tokens by cosines of half the width; a guard keeps the tensor's device."""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(y, x, cos, sin, ends, starts, s, h, rows, x_b, x_s, x_h, x_d, y_b, y_s, y_h, y_d,
            HALF: tl.constexpr, STEP: tl.constexpr, APART: tl.constexpr, BACK: tl.constexpr,
            PACKED: tl.constexpr, STARTS: tl.constexpr, HEADS: tl.constexpr, TOKENS: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    """A feature's partner lies APART from it, the next pair STEP"""
    b = tl.program_id(2).to(tl.int64)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    if PACKED:
        first = tl.load(ends + b)
        s = tl.load(ends + b + 1) - first
        x += first.to(tl.int64) * x_s
        y += first.to(tl.int64) * y_s
    else:
        x += b * x_b
        y += b * y_b
    if tl.program_id(1) * TOKENS >= s:
        return
    place = token
    if STARTS:
        place = token + tl.load(starts + b)
    pair = tl.arange(0, BLOCK)
    at = place[:, None] * HALF + pair
    known = (place[:, None] < rows) & (pair < HALF)
    c = tl.load(cos + at, mask=known, other=1.0)
    w = tl.load(sin + at, mask=known, other=0.0)
    if BACK:
        w = -w
    head = (tl.program_id(0) * HEADS + tl.arange(0, HEADS)).to(tl.int64)[:, None, None]
    token = token.to(tl.int64)
    keep = (head < h) & (token[:, None] < s) & (pair < HALF)
    x += head * x_h + token[:, None] * x_s + pair * STEP * x_d
    y += head * y_h + token[:, None] * y_s + pair * STEP * y_d
    a = tl.load(x, mask=keep, other=0.0).to(tl.float32)
    z = tl.load(x + APART * x_d, mask=keep, other=0.0).to(tl.float32)
    tl.store(y, a * c - z * w, mask=keep)
    tl.store(y + APART * y_d, z * c + a * w, mask=keep)


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cos, sin, interleaved, ends, starts, back=False):
        ctx.save_for_backward(cos, sin, ends, starts)
        ctx.interleaved = interleaved
        y, half = torch.empty_like(x), cos.shape[-1]
        y[..., 2 * half :] = x[..., 2 * half :]
        s, h = x.shape[-3:-1]
        longest, b = (s, len(x)) if ends is None else (min(s, len(cos)), len(ends) - 1)
        step, apart = (2, 1) if interleaved else (1, half)
        strides = [*([0] * (x.dim() == 3)), *x.stride(), *([0] * (x.dim() == 3)), *y.stride()]
        if x.numel():
            with torch.cuda.device(x.device.index):
                _kernel[triton.cdiv(h, 2), triton.cdiv(longest, 4), b](
                    y, x, cos, sin, ends, starts, s, h, len(cos), *strides, half, step, apart,
                    back, ends is not None, starts is not None, 2, 4, triton.next_power_of_2(half),
                )  # fmt: skip
        return y

    @staticmethod
    def backward(ctx, grad):
        cos, sin, ends, starts = ctx.saved_tensors
        turned = _Rope.apply(grad, cos, sin, ctx.interleaved, ends, starts, True)
        return turned, None, None, None, None, None, None


def rope(t, freqs, *, tensor_format="sbhd", interleaved=False, start_positions=None,
         cu_seqlens=None):  # fmt: skip
    angles = freqs.flatten(1)
    first, second = (angles[:, ::2], angles[:, 1::2]) if interleaved else angles.chunk(2, 1)
    if not torch.equal(first, second):
        raise NotImplementedError("angles that differ within a pair")
    cos, sin = first.cos().contiguous(), first.sin().contiguous()
    small = [each if each is None else each.contiguous() for each in (cu_seqlens, start_positions)]
    x = t.transpose(0, 1) if tensor_format == "sbhd" else t
    y = _Rope.apply(x, cos, sin, interleaved, *small)
    return y.transpose(0, 1) if tensor_format == "sbhd" else y
