"""torch multiplies; one Triton kernel takes silu(a) * b, another its two gradients in float32."""

import torch
import triton
import triton.language as tl
from torch.nn.functional import linear


@triton.heuristics({"BLOCK": lambda given: 1024 if given["elements"] > 4096 else 256})
@triton.jit
def _gate(a, b, out, elements, BLOCK: tl.constexpr):
    """silu(a) * b"""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = at < elements
    x = tl.load(a + at, mask=keep, other=0).to(tl.float32)
    y = tl.load(b + at, mask=keep, other=0).to(tl.float32)
    tl.store(out + at, x * tl.sigmoid(x) * y, mask=keep)


@triton.heuristics({"BLOCK": lambda given: 1024 if given["elements"] > 4096 else 256})
@triton.jit
def _gate_backward(a, b, grad, d_a, d_b, elements, BLOCK: tl.constexpr):
    """d_a = g b s (1 + a (1 - s)) and d_b = g a s, where s = sigmoid(a)"""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = at < elements
    x = tl.load(a + at, mask=keep, other=0).to(tl.float32)
    y = tl.load(b + at, mask=keep, other=0).to(tl.float32)
    g = tl.load(grad + at, mask=keep, other=0).to(tl.float32)
    s = tl.sigmoid(x)
    tl.store(d_a + at, g * y * s * (1 + x * (1 - s)), mask=keep)
    tl.store(d_b + at, g * x * s, mask=keep)


def _grid(elements):
    return lambda chosen: (triton.cdiv(elements, chosen["BLOCK"]),)


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        a, b = a.contiguous(), b.contiguous()
        ctx.save_for_backward(a, b)
        out = torch.empty_like(a)
        if out.numel():
            _gate[_grid(out.numel())](a, b, out, out.numel())
        return out

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        grad, d_a, d_b = grad.contiguous(), torch.empty_like(a), torch.empty_like(b)
        if a.numel():
            _gate_backward[_grid(a.numel())](a, b, grad, d_a, d_b, a.numel())
        return d_a, d_b


def masked_ffn(x, w1, w2, w3, u1, u2, u3, mask):
    visual = linear(_Gate.apply(linear(x, w1), linear(x, w3)), w2)
    textual = linear(_Gate.apply(linear(x, u1), linear(x, u3)), u2)
    return torch.where(mask[:, None], visual, textual)
