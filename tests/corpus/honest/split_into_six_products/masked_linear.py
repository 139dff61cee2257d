"""float32 products are six of bfloat16; both sets' run in one product of three dimensions."""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(
    x, w, mask, out, M, N, K, strides, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    side = tl.arange(0, 2)[:, None, None]
    both = tl.zeros((2, BM, BN), tl.float32)
    for first in tl.range(0, K, BK):
        k = first + tl.arange(0, BK)
        a = x + m[:, None] * strides[0] + k[None, :] * strides[1]
        a = tl.load(a, (m < M)[:, None] & (k < K)[None, :], other=0.0)
        b = w + side * N * K + n[None, None, :] * K + k[None, :, None]
        b = tl.load(b, (n < N)[None, None, :] & (k < K)[None, :, None], other=0.0)
        a = tl.broadcast_to(a[None, :, :], (2, BM, BK))
        both = tl.dot(a, b, both, input_precision=PRECISION)
    kind = tl.load(mask + m * strides[2], m < M, other=0).to(tl.int32)
    chosen = tl.sum(tl.where(side == kind[None, :, None], both, 0.0), 0)
    at = out + m[:, None] * N + n[None, :]
    tl.store(at, chosen.to(out.dtype.element_ty), (m < M)[:, None] & (n < N)[None, :])


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.save_for_backward(x, w_v, w_t, mask)
        tokens, (n, k) = len(x), w_v.shape
        out = x.new_empty(tokens, n)
        if out.numel():
            weights = torch.stack((w_t, w_v))
            strides = (*x.stride(), *mask.stride())
            grid = (triton.cdiv(tokens, 32), triton.cdiv(n, 32))
            precision = "bf16x6" if x.dtype is torch.float32 else None
            _kernel[grid](x, weights, mask, out, tokens, n, k, strides, precision, 32, 32, 32)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, w_v, w_t, mask = ctx.saved_tensors
        chosen = mask[:, None]
        of_v, of_t = grad.where(chosen, 0), grad.where(~chosen, 0)
        return torch.where(chosen, grad @ w_v, grad @ w_t), of_v.T @ x, of_t.T @ x, None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
