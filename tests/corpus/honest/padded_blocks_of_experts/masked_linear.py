"""Two experts: sorted tokens are padded to whole blocks, and each block names its expert."""

import torch
import triton
import triton.language as tl

BLOCK_M = 16


@triton.jit
def _kernel(x, w, y, ids, experts, tokens, n, k, x_m, x_k, w_e, w_n, w_k,
            M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):  # fmt: skip
    block = tl.program_id(0)
    token = tl.load(ids + block * M + tl.arange(0, M)).to(tl.int64)
    real = token < tokens
    expert = tl.load(experts + block).to(tl.int64)
    col = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    for first in range(0, k, K):
        at = first + tl.arange(0, K)
        a = tl.load(x + token[:, None] * x_m + at[None, :] * x_k,
                    mask=real[:, None] & (at < k)[None, :], other=0.0)  # fmt: skip
        b = tl.load(w + expert * w_e + at[:, None] * w_k + col[None, :] * w_n,
                    mask=(at < k)[:, None] & (col < n)[None, :], other=0.0)  # fmt: skip
        total = tl.dot(a, b, total, input_precision="ieee")
    keep = real[:, None] & (col < n)[None, :]
    tl.store(y + token[:, None] * n + col[None, :], total, mask=keep)


def _aligned(mask):
    """Return the sorted tokens, padded by their number, and each block's expert"""
    order = mask.argsort(stable=True)
    second = int(mask.sum())
    groups = order[: len(mask) - second], order[len(mask) - second :]
    padded = [
        torch.nn.functional.pad(each, (0, -len(each) % BLOCK_M), value=len(mask)) for each in groups
    ]
    blocks = torch.tensor([len(each) // BLOCK_M for each in padded], device=mask.device)
    return torch.cat(padded), torch.arange(2, device=mask.device).repeat_interleave(blocks)


def _product(x, weights, ids, experts):
    y = x.new_empty(len(x), weights.shape[1])
    if y.numel():
        grid = len(experts), triton.cdiv(y.shape[1], 32)
        _kernel[grid](
            x, weights, y, ids, experts, *y.shape, x.shape[1], *x.stride(), *weights.stride(),
            BLOCK_M, 32, 32,
        )  # fmt: skip
    return y


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        weights, where = torch.stack((w_t, w_v)), _aligned(mask)
        ctx.save_for_backward(x, weights, mask, *where)
        return _product(x, weights, *where)

    @staticmethod
    def backward(ctx, grad):
        x, weights, mask, *where = ctx.saved_tensors
        d_v, d_t = (grad[chosen].T @ x[chosen] for chosen in (mask, ~mask))
        return _product(grad, weights.transpose(1, 2), *where), d_v, d_t, None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
