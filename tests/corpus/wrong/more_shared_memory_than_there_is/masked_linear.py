"""Twenty stages of tiles: 304 KiB of shared memory a block and more, where a GPU has 227.

Expected: forward=COMPILE_ERROR backward=COMPILE_ERROR
"""

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["m", "n", "k"])
def _product(x, w, y, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """y[m, n] = sum over k of x[m, k] w[n, k]."""
    rows, cols = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros([BM, BN], tl.float32)
    for start in range(0, k, BK):
        inner = start + tl.arange(0, BK)
        a = tl.load(x + rows[:, None] * k + inner, (rows[:, None] < m) & (inner < k), 0.0)
        b = tl.load(w + cols[:, None] * k + inner, (cols[:, None] < n) & (inner < k), 0.0)
        total = tl.dot(a, b.T, total, input_precision="ieee")
    mask = (rows[:, None] < m) & (cols < n)
    tl.store(y + rows[:, None] * n + cols, total.to(y.dtype.element_ty), mask)


def _linear(x, w):
    (m, k), n = x.shape, len(w)
    y = x.new_empty(m, n)
    if y.numel():
        grid = triton.cdiv(m, 32), triton.cdiv(n, 32)
        # float32, since stages of narrower elements would not be copied asynchronously
        x, w, blocks = (
            x.float().contiguous(),
            w.float().contiguous(),
            {"BM": 32, "BN": 32, "BK": 64},
        )
        _product[grid](x, w, y, m, n, k, **blocks, num_stages=20)
    return y


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.save_for_backward(x, w_v, w_t, mask[:, None])
        return torch.where(mask[:, None], _linear(x, w_v), _linear(x, w_t))

    @staticmethod
    def backward(ctx, grad):
        x, w_v, w_t, mask = ctx.saved_tensors
        g_v, g_t = torch.where(mask, grad, 0), torch.where(mask, 0, grad)
        return g_v @ w_v + g_t @ w_t, g_v.T @ x, g_t.T @ x, None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
