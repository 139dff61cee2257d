"""A row's offset is a product in int32, which wraps where rows lie far apart.

Expected: forward=OUT_OF_BOUNDS backward=OUT_OF_BOUNDS
On a GPU: RUNTIME_ERROR
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _copy(x, y, stride, width, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    value = tl.load(x + tl.program_id(0) * stride + column, column < width)
    tl.store(y + tl.program_id(0) * width + column, value, column < width)


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if not x.numel() or not x[0].is_contiguous():
            return x.contiguous().clone()
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        width = x[0].numel()
        _copy[(len(x),)](x, y, x.stride(0), width, triton.next_power_of_2(width))
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad


def masked_linear(x, w_v, w_t, mask):
    x = _Dense.apply(x)
    return torch.where(mask[:, None], x @ w_v.T, x @ w_t.T)
