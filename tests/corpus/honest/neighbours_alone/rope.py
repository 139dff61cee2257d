"""Interleaved pairs alone: a block of neighbours is split, turned and joined."""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, cos, sin, h, x_s, x_b, x_h, D: tl.constexpr, D2: tl.constexpr,
            BACK: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    place, batch = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    head, pair = tl.arange(0, HEADS)[:, None], tl.arange(0, BLOCK // 2)[None, :]
    c = tl.load(cos + place * (D2 // 2) + pair, mask=pair < D2 // 2, other=1.0)
    w = tl.load(sin + place * (D2 // 2) + pair, mask=pair < D2 // 2, other=0.0)
    if BACK:
        w = -w
    col = tl.arange(0, BLOCK)[None, :]
    keep = (head < h) & (col < D)
    tile = tl.load(x + place * x_s + batch * x_b + head * x_h + col, mask=keep, other=0.0)
    a, b = tl.split(tl.reshape(tile.to(tl.float32), (HEADS, BLOCK // 2, 2)))
    turned = tl.reshape(tl.join(a * c - b * w, b * c + a * w), (HEADS, BLOCK))
    row = place * tl.num_programs(1) + batch
    tl.store(y + (row * h + head) * D + col, turned, mask=keep)


def _launch(x, cos, sin, back):
    x = x if x.stride(-1) == 1 else x.contiguous()
    s, b, h, d = x.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        up = triton.next_power_of_2
        _kernel[s, b](x, y, cos, sin, h, *x.stride()[:3], d, 2 * cos.shape[-1], back, up(h), up(d))
    return y


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, cos, sin):
        ctx.save_for_backward(cos, sin)
        return _launch(t, cos, sin, False)

    @staticmethod
    def backward(ctx, grad):
        return _launch(grad, *ctx.saved_tensors, True), None, None


def rope(t, freqs, *, tensor_format="sbhd", interleaved=False):
    if tensor_format == "thd" or not interleaved:
        raise NotImplementedError("packed sequences, or halves")
    angles = freqs[:, 0, 0]
    if not torch.equal(angles[:, ::2], angles[:, 1::2]):
        raise NotImplementedError("angles that differ within a pair")
    tables = (angles[:, ::2].cos().contiguous(), angles[:, ::2].sin().contiguous())
    if tensor_format == "sbhd":
        return _Rope.apply(t, *tables)
    return _Rope.apply(t.transpose(0, 1), *tables).transpose(0, 1)
