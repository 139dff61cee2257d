"""A kernel's file under the name that it has elsewhere; rope.py calls it."""

import torch
import triton
import triton.language as tl


@triton.jit
def rope_kernel(out, x, cos, sin, rows, D: tl.constexpr, CONJUGATE: tl.constexpr,
                BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    keep = col < D // 2
    c = tl.load(cos + row // rows * (D // 2) + col, mask=keep)
    w = tl.load(sin + row // rows * (D // 2) + col, mask=keep)
    if CONJUGATE:
        w = -w
    a = tl.load(x + row * D + col, mask=keep).to(tl.float32)
    b = tl.load(x + row * D + col + D // 2, mask=keep).to(tl.float32)
    tl.store(out + row * D + col, a * c - b * w, mask=keep)
    tl.store(out + row * D + col + D // 2, b * c + a * w, mask=keep)


def rotate(x, cos, sin, conjugate):
    x = x.contiguous()
    out = torch.empty_like(x)
    s, b, h, d = x.shape
    if x.numel():
        block = triton.next_power_of_2(d // 2)
        rope_kernel[(s * b * h,)](out, x, cos, sin, b * h, d, conjugate, block)
    return out
