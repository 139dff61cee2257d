"""Each load adds zero times the next place in memory, which is NaN between a view's elements.

Expected: forward=OUT_OF_BOUNDS backward=PASSED
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x, y, stride, d, BACKWARD: tl.constexpr, BLOCK: tl.constexpr):
    x += tl.program_id(0) * d * stride
    y += tl.program_id(0) * d
    col = tl.arange(0, BLOCK)
    inside = col < d
    first = col < d // 2
    partner = tl.where(first, col + d // 2, col - d // 2)
    value = tl.load(x + partner * stride, inside)
    value += 0 * tl.load(x + partner * stride + 1, inside & (partner < d - 1), 0)
    tl.store(y + col, tl.where(first != BACKWARD, -value, value), inside)


def _launch(x, backward):
    if x.stride() != tuple(n * x.stride(-1) for n in torch.empty(x.shape, device="meta").stride()):
        x = x.contiguous()
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        d = x.shape[-1]
        block = triton.next_power_of_2(d)
        _kernel[(x.numel() // d,)](x, y, x.stride(-1), d, backward, block)
    return y


class _RotateHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _launch(x, False)

    @staticmethod
    def backward(ctx, grad):
        return _launch(grad.contiguous(), True)


def rotate_half(x):
    return _RotateHalf.apply(x)
