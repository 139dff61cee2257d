"""sbhd and contiguous memory alone, one flat index for all: rows, features and their angles."""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, cos, sin, pairs, rows, HALF: tl.constexpr, BACK: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = pair < pairs
    row, col = pair // HALF, pair % HALF
    c = tl.load(cos + row // rows * HALF + col, mask=keep)
    w = tl.load(sin + row // rows * HALF + col, mask=keep)
    if BACK:
        w = -w
    at = row.to(tl.int64) * 2 * HALF + col
    a = tl.load(x + at, mask=keep).to(tl.float32)
    b = tl.load(x + at + HALF, mask=keep).to(tl.float32)
    tl.store(y + at, a * c - b * w, mask=keep)
    tl.store(y + at + HALF, b * c + a * w, mask=keep)


def _launch(x, cos, sin, back):
    if not x.is_contiguous():
        raise NotImplementedError("strides")
    y = torch.empty_like(x)
    _, b, h, d = x.shape
    pairs = x.numel() // 2
    if pairs:
        _kernel[(triton.cdiv(pairs, 256),)](x, y, cos, sin, pairs, b * h, d // 2, back, 256)
    return y


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, cos, sin):
        ctx.save_for_backward(cos, sin)
        return _launch(t, cos, sin, False)

    @staticmethod
    def backward(ctx, grad):
        return _launch(grad, *ctx.saved_tensors, True), None, None


def rope(t, freqs):
    if freqs.shape[-1] != t.shape[-1] or not freqs.is_contiguous():
        raise NotImplementedError("a part of the features, or strides")
    first, second = freqs[:, 0, 0].chunk(2, -1)
    if not torch.equal(first, second):
        raise NotImplementedError("angles that differ within a pair")
    return _Rope.apply(t, first.cos().contiguous(), first.sin().contiguous())
