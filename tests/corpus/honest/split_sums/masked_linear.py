"""Products are split along K into partial sums in float32, which are added in a fixed order."""

import torch
import triton
import triton.language as tl

SPLITS = 4


@triton.jit
def _partial(
    x, w_v, w_t, mask, parts, tokens, n, k, each, x_row, x_col, v_row, v_col, t_row, t_col, m_row,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """parts[s] = x[:, s] @ (mask ? w_v : w_t)[:, s].T, for the columns s of one split"""
    split = tl.program_id(2)
    row = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    col = (tl.program_id(1) * BN + tl.arange(0, BN)).to(tl.int64)
    visual, textual = tl.zeros([BM, BN], tl.float32), tl.zeros([BM, BN], tl.float32)
    for first in range(split * each, tl.minimum(split * each + each, k), BK):
        at = (first + tl.arange(0, BK)).to(tl.int64)
        inside = at < tl.minimum(split * each + each, k)
        a = tl.load(x + row[:, None] * x_row + at[None, :] * x_col,
                    mask=(row < tokens)[:, None] & inside[None, :], other=0)  # fmt: skip
        keep = (col < n)[None, :] & inside[:, None]
        v = tl.load(w_v + col[None, :] * v_row + at[:, None] * v_col, mask=keep, other=0)
        t = tl.load(w_t + col[None, :] * t_row + at[:, None] * t_col, mask=keep, other=0)
        visual = tl.dot(a, v, visual, input_precision="ieee")
        textual = tl.dot(a, t, textual, input_precision="ieee")
    chosen = tl.load(mask + row * m_row, mask=row < tokens, other=0) != 0
    keep = (row < tokens)[:, None] & (col < n)[None, :]
    at = split.to(tl.int64) * tokens * n + row[:, None] * n + col[None, :]
    tl.store(parts + at, tl.where(chosen[:, None], visual, textual), mask=keep)


@triton.jit
def _add(parts, out, elements, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + split * elements + at, mask=at < elements)
    tl.store(out + at, total, mask=at < elements)


def _forward(x, w_v, w_t, mask):
    (tokens, k), n = x.shape, len(w_v)
    out = torch.empty(tokens, n, dtype=x.dtype, device=x.device)
    if out.numel():
        parts = torch.empty(SPLITS, tokens, n, dtype=torch.float32, device=x.device)
        each = triton.cdiv(k, SPLITS)
        _partial[(triton.cdiv(tokens, 32), triton.cdiv(n, 32), SPLITS)](
            x, w_v, w_t, mask, parts, tokens, n, k, each,
            *x.stride(), *w_v.stride(), *w_t.stride(), mask.stride(0), 32, 32, 64,
        )  # fmt: skip
        _add[(triton.cdiv(out.numel(), 1024),)](parts, out, out.numel(), SPLITS, 1024)
    return out


class _MaskedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w_v, w_t, mask):
        ctx.save_for_backward(x, w_v, w_t, mask)
        return _forward(x, w_v, w_t, mask)

    @staticmethod
    def backward(ctx, grad):
        x, w_v, w_t, mask = ctx.saved_tensors
        d_x = _forward(grad, w_v.T, w_t.T, mask)
        return d_x, grad[mask].T @ x[mask], grad[~mask].T @ x[~mask], None


def masked_linear(x, w_v, w_t, mask):
    return _MaskedLinear.apply(x, w_v, w_t, mask)
