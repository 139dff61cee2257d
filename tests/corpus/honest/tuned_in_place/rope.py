"""triton.autotune of a kernel that works in place: it restores its argument after each trial."""

import torch
import triton
import triton.language as tl

CONFIGS = [
    triton.Config({"HEADS": heads}, num_warps=warps) for heads, warps in ((1, 1), (4, 2), (16, 4))
]


@triton.autotune(CONFIGS, key=["s", "h", "D"], restore_value=["x"])
@triton.jit
def _kernel(x, cos, sin, b, s, h, BACK: tl.constexpr, BATCH_FIRST: tl.constexpr, D: tl.constexpr,
            BLOCK: tl.constexpr, HEADS: tl.constexpr):  # fmt: skip
    place, batch = tl.program_id(0), tl.program_id(1)
    head = tl.program_id(2) * HEADS + tl.arange(0, HEADS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    keep = (head < h) & (col < D // 2)
    c = tl.load(cos + place * (D // 2) + col, mask=col < D // 2)
    w = tl.load(sin + place * (D // 2) + col, mask=col < D // 2)
    if BACK:
        w = -w
    row = batch.to(tl.int64) * s + place if BATCH_FIRST else place.to(tl.int64) * b + batch
    x += (row * h + head) * D + col
    lower, upper = tl.load(x, mask=keep).to(tl.float32), tl.load(x + D // 2, mask=keep)
    tl.store(x, lower * c - upper * w, mask=keep)
    tl.store(x + D // 2, upper * c + lower * w, mask=keep)


def _turned(t, cos, sin, batch_first, back):
    x = t.clone(memory_format=torch.contiguous_format)
    s, b = x.shape[1::-1] if batch_first else x.shape[:2]
    h, d = x.shape[2:]
    if x.numel():
        _kernel[lambda chosen: (s, b, triton.cdiv(h, chosen["HEADS"]))](
            x, cos, sin, b, s, h, BACK=back, BATCH_FIRST=batch_first, D=d,
            BLOCK=triton.next_power_of_2(d // 2),
        )  # fmt: skip
    return x


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, cos, sin, batch_first):
        ctx.given = cos, sin, batch_first
        return _turned(t, *ctx.given, False)

    @staticmethod
    def backward(ctx, grad):
        return _turned(grad, *ctx.given, True), None, None, None


def rope(t, freqs, *, tensor_format="sbhd"):
    if tensor_format == "thd" or freqs.shape[-1] != t.shape[-1]:
        raise NotImplementedError("packed sequences, or a part of the features")
    first, second = freqs[:, 0, 0].chunk(2, -1)
    if not torch.equal(first, second):
        raise NotImplementedError("angles that differ within a pair")
    tables = first.cos().contiguous(), first.sin().contiguous()
    return _Rope.apply(t, *tables, tensor_format == "bshd")
