"""A row's position is its remainder by the length, in sbhd too, whose rows alternate sequences.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: rows of sbhd are counted as those of bshd: row % s
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, freqs, y, s, width, d, HALF: tl.constexpr, BACKWARD: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    pair = tl.arange(0, BLOCK)
    mask = pair < HALF
    angles = freqs + (row % s) * 2 * HALF + pair
    first, second = tl.load(angles, mask, 0.0), tl.load(angles + HALF, mask, 0.0)
    sine1, sine2 = tl.sin(first), tl.sin(second)
    if BACKWARD:
        sine1, sine2 = -sine2, -sine1
    place = row * width + head * d + pair
    a = tl.load(x + place, mask, 0.0).to(tl.float32)
    b = tl.load(x + place + HALF, mask, 0.0).to(tl.float32)
    tl.store(y + place, a * tl.cos(first) - b * sine1, mask)
    tl.store(y + place + HALF, b * tl.cos(second) + a * sine2, mask)


def _launch(x, freqs, s, backward):
    x = x.contiguous()
    y = x.clone()  # holds the features that pass through
    heads, d = x.shape[-2:]
    if x.numel():
        half = freqs.shape[-1] // 2
        rows = x.numel() // (heads * d)
        block = triton.next_power_of_2(max(half, 1))
        _kernel[rows, heads](x, freqs, y, s, heads * d, d, half, backward, block)
    return y


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, freqs, s):
        ctx.given = freqs, s
        return _launch(x, *ctx.given, False)

    @staticmethod
    def backward(ctx, grad):
        return _launch(grad, *ctx.given, True), None, None


def rope(t, freqs, *, tensor_format="sbhd"):
    if tensor_format == "thd":
        raise NotImplementedError("thd")
    return _Rope.apply(t, freqs.contiguous(), t.shape[tensor_format.index("s")])
