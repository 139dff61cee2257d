"""The angles' row is found by the head's program, not by the position's.

Expected: forward=INCORRECT_NUMERICAL backward=INCORRECT_NUMERICAL
Cause: the head stands for the position
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, freqs, y, heads, d, HALF: tl.constexpr, BACKWARD: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    pair = tl.arange(0, BLOCK)
    mask = pair < HALF
    angles = freqs + head * 2 * HALF + pair
    first, second = tl.load(angles, mask, 0.0), tl.load(angles + HALF, mask, 0.0)
    sine1, sine2 = tl.sin(first), tl.sin(second)
    if BACKWARD:
        sine1, sine2 = -sine2, -sine1
    place = (row * heads + head) * d + pair
    a = tl.load(x + place, mask, 0.0).to(tl.float32)
    b = tl.load(x + place + HALF, mask, 0.0).to(tl.float32)
    tl.store(y + place, a * tl.cos(first) - b * sine1, mask)
    tl.store(y + place + HALF, b * tl.cos(second) + a * sine2, mask)


def _launch(x, freqs, backward):
    x = x.contiguous()
    y = x.clone()  # holds the features that pass through
    heads, d = x.shape[-2:]
    if x.numel():
        half = freqs.shape[-1] // 2
        rows = x.numel() // (heads * d)
        block = triton.next_power_of_2(max(half, 1))
        _kernel[rows, heads](x, freqs, y, heads, d, half, backward, block)
    return y


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, freqs):
        ctx.save_for_backward(freqs)
        return _launch(x, freqs, False)

    @staticmethod
    def backward(ctx, grad):
        return _launch(grad, *ctx.saved_tensors, True), None


def rope(t, freqs, *, tensor_format="sbhd"):
    if tensor_format == "thd" or t.shape[2] > len(freqs):
        raise NotImplementedError("thd, or more heads than positions")
    return _Rope.apply(t, freqs.contiguous())
