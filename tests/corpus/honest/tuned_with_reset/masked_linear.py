"""A tuned kernel adds to memory that the tuner zeroes before each of its launches."""

import torch
import triton
import triton.language as tl


@triton.autotune(
    [triton.Config({"BM": 32}), triton.Config({"BM": 64})],
    key=["m", "n", "k"],
    reset_to_zero=["dv", "dt"],
)
@triton.jit
def _weights(
    g, x, mask, dv, dt, m, n, k, BM: tl.constexpr, BN: tl.constexpr = 32, BK: tl.constexpr = 32
):
    """dv += g.T x of the tokens with the mask, dt += g.T x of the others"""
    ns, ks = tl.program_id(0) * BN + tl.arange(0, BN), tl.program_id(1) * BK + tl.arange(0, BK)
    visual = tl.zeros((BN, BK), tl.float32)
    textual = tl.zeros((BN, BK), tl.float32)
    for start in range(0, m, BM):
        rows = start + tl.arange(0, BM)
        kind = tl.load(mask + rows, rows < m, 0) != 0
        held, kept = (
            (rows < m)[None, :] & (ns < n)[:, None],
            (rows < m)[:, None] & (ks < k)[None, :],
        )
        gt = tl.load(g + rows[None, :] * n + ns[:, None], held, 0.0)
        xt = tl.load(x + rows[:, None] * k + ks[None, :], kept, 0.0)
        zero = tl.zeros_like(gt)
        visual = tl.dot(tl.where(kind[None, :], gt, zero), xt, visual, input_precision="ieee")
        textual = tl.dot(tl.where(kind[None, :], zero, gt), xt, textual, input_precision="ieee")
    at, on = ns[:, None] * k + ks[None, :], (ns < n)[:, None] & (ks < k)[None, :]
    tl.atomic_add(dv + at, visual, on)
    tl.atomic_add(dt + at, textual, on)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, v, t, mask):
        ctx.save_for_backward(x, v, t, mask)
        return torch.where(mask[:, None], x @ v.T, x @ t.T)

    @staticmethod
    def backward(ctx, g):
        x, v, t, mask = (saved.contiguous() for saved in ctx.saved_tensors)
        g, (m, k), n = g.contiguous(), x.shape, len(v)
        dx = torch.where(mask[:, None], g @ v, g @ t)
        dv, dt = torch.zeros(2, n, k, dtype=torch.float32, device=g.device)
        if g.numel() and k:
            tiles = triton.cdiv(n, 32), triton.cdiv(k, 32)
            _weights[tiles](g, x, mask, dv, dt, m, n, k)
        return dx, dv.to(v.dtype), dt.to(t.dtype), None


def masked_linear(x, w_v, w_t, mask):
    return _Linear.apply(x, w_v, w_t, mask)
