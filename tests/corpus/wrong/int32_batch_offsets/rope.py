"""A position's offset is in int64, that of a batch in int32: it wraps where batches lie far apart.

Expected: forward=OUT_OF_BOUNDS backward=OUT_OF_BOUNDS
On a GPU: RUNTIME_ERROR
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _copy(x, y, batch, position, length, width, BLOCK: tl.constexpr):
    index, column = tl.program_id(1).to(tl.int64), tl.arange(0, BLOCK)
    source = x + tl.program_id(0) * batch + index * position + column
    target = y + (tl.program_id(0) * length + index) * width + column
    tl.store(target, tl.load(source, column < width), column < width)


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if not x.numel() or not x[0][0].is_contiguous():
            return x.contiguous().clone()
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        width = x[0][0].numel()
        block = triton.next_power_of_2(width)
        _copy[x.shape[:2]](x, y, x.stride(0), x.stride(1), x.shape[1], width, block)
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad


def rope(t, freqs, *, tensor_format="sbhd"):
    if tensor_format != "bshd":
        raise NotImplementedError(tensor_format)
    angles = freqs[: t.shape[1]].transpose(0, 1)
    d2 = angles.shape[-1]
    x, rest = _Dense.apply(t).split((d2, t.shape[-1] - d2), -1)
    a, b = x.chunk(2, -1)
    y = x * angles.cos().to(t.dtype) + torch.cat((-b, a), -1) * angles.sin().to(t.dtype)
    return torch.cat((y, rest), -1)
