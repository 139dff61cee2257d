"""All programs share a scratch element and may run at once, so that the last bits race.

Expected: forward=PASSED backward=PASSED
On a GPU: NONDETERMINISTIC
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, freqs, y, scales, rows, d, d2, BACKWARD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x += row * d
    y += row * d
    freqs += row // rows * d2  # a position has `rows` rows: its batches and heads
    col = tl.arange(0, BLOCK)
    inside = col < d
    rotated = col < d2
    first = col < d2 // 2
    partner = tl.where(first, col + d2 // 2, col - d2 // 2)
    a = tl.load(x + col, inside, 0.0).to(tl.float32)
    b = tl.load(x + partner, rotated, 0.0).to(tl.float32)
    tl.store(scales, tl.maximum(tl.max(tl.abs(a)), 1e-30))
    tl.debug_barrier()
    scale = tl.load(scales, volatile=True)
    angle = tl.load(freqs + col, rotated, 0.0)
    if BACKWARD:
        sine = tl.where(first, 1.0, -1.0) * tl.sin(tl.load(freqs + partner, rotated, 0.0))
    else:
        sine = tl.where(first, -1.0, 1.0) * tl.sin(angle)
    turned = (a / scale * tl.cos(angle) + b / scale * sine) * scale
    tl.store(y + col, tl.where(rotated, turned, a), inside)


def _launch(x, freqs, backward):
    x, freqs = x.contiguous(), freqs.contiguous()
    y = torch.empty_like(x)
    s, b, h, d = x.shape
    if x.numel():
        scales = torch.empty(1, dtype=torch.float32, device=x.device)
        sizes = (b * h, d, freqs.shape[-1])
        block = triton.next_power_of_2(d)
        _kernel[(s * b * h,)](x, freqs, y, scales, *sizes, backward, block)
    return y


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, freqs):
        ctx.save_for_backward(freqs)
        return _launch(t, freqs, False)

    @staticmethod
    def backward(ctx, grad):
        (freqs,) = ctx.saved_tensors
        return _launch(grad, freqs, True), None


def rope(t, freqs):
    return _Rope.apply(t, freqs)
