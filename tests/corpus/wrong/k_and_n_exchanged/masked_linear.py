"""Backward's kernel gets inputs and outputs exchanged: right for square weights alone.

Expected: forward=PASSED backward=OUT_OF_BOUNDS
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(g, w, mask, d_x, M, K, N, g_row, w_row, d_row, SIDE: tl.constexpr):
    # d_x = g @ w, [M, K]: the sum runs over the N features of g
    row = tl.program_id(0) * 16 + tl.arange(0, 16)
    column = tl.program_id(1) * 16 + tl.arange(0, 16)[None, :]
    real = column < K
    keep = ((row < M) & (tl.load(mask + row, row < M, 0) == SIDE))[:, None]
    acc = tl.zeros((16, 16), tl.float32)
    for start in range(0, N, 16):
        n = start + tl.arange(0, 16)
        g_tile = tl.load(g + row[:, None] * g_row + n, (row < M)[:, None] & (n < N), 0.0)
        w_tile = tl.load(w + n[:, None] * w_row + column, (n < N)[:, None] & real, 0.0)
        acc = tl.dot(g_tile, w_tile, acc, input_precision="ieee")
    tl.store(d_x + row[:, None] * d_row + column, acc, keep & real)


def _gradient(g, w_v, w_t, mask):
    g, w_v, w_t, mask = (tensor.contiguous() for tensor in (g, w_v, w_t, mask))
    (M, K), N = g.shape, w_v.shape[1]  # right: (M, N), K
    d_x = torch.empty(M, N, dtype=g.dtype, device=g.device)
    grid = (triton.cdiv(M, 16), triton.cdiv(K, 16))
    rows = g.stride(0), w_v.stride(0), d_x.stride(0)
    if M:
        _kernel[grid](g, w_v, mask, d_x, M, K, N, *rows, 1)
        _kernel[grid](g, w_t, mask, d_x, M, K, N, *rows, 0)
    return d_x


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.save_for_backward(x, w_v, w_t, mask)
        return torch.where(mask[:, None], x @ w_v.T, x @ w_t.T)

    @staticmethod
    def backward(ctx, grad):
        x, w_v, w_t, mask = ctx.saved_tensors
        d_x = _gradient(grad, w_v, w_t, mask)
        return d_x, (grad * mask[:, None]).T @ x, (grad * ~mask[:, None]).T @ x, None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
