"""Gate and up are one product; backward's kernel writes their gradients over both of them."""

import torch
import triton
import triton.language as tl


@triton.jit
def _forward(ab, c, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(ab + row * 2 * N + col, mask=col < N).to(tl.float32)
    b = tl.load(ab + row * 2 * N + N + col, mask=col < N)
    tl.store(c + row * N + col, a * tl.sigmoid(a) * b.to(tl.float32), mask=col < N)


@triton.jit
def _backward(ab, grad, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(ab + row * 2 * N + col, mask=col < N).to(tl.float32)
    b = tl.load(ab + row * 2 * N + N + col, mask=col < N).to(tl.float32)
    g = tl.load(grad + row * N + col, mask=col < N).to(tl.float32)
    share = tl.sigmoid(a)
    tl.store(ab + row * 2 * N + col, g * b * share * (1 + a * (1 - share)), mask=col < N)
    tl.store(ab + row * 2 * N + N + col, g * a * share, mask=col < N)


class _SiluAndMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ab):
        c = ab.new_empty(len(ab), ab.shape[1] // 2)
        ctx.save_for_backward(ab)
        if c.numel():
            _forward[len(c), triton.cdiv(c.shape[1], 64)](ab, c, c.shape[1], 64)
        return c

    @staticmethod
    def backward(ctx, grad):
        (ab,) = ctx.saved_tensors
        grad = grad.contiguous()
        if grad.numel():
            _backward[len(grad), triton.cdiv(grad.shape[1], 64)](ab, grad, grad.shape[1], 64)
        return ab


def masked_ffn(x, w1, w2, w3, u1, u2, u3, mask):
    def layer(gate, down, up):
        ab = x @ torch.cat((gate, up)).T
        return _SiluAndMul.apply(ab) @ down.T

    return torch.where(mask[:, None], layer(w1, w2, w3), layer(u1, u2, u3))
